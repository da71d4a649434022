// Addresses of pages, with names escaped.

const part = encodeURIComponent;

function query(values) {
  const given = Object.entries(values).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

export const toTopic = (topic) => `#/topics/${part(topic)}`;
export const toTopicChanges = (topic) => `${toTopic(topic)}/edit`;
export const toMessages = (topic, where = {}) => `#/messages/${part(topic)}${query(where)}`;
export const toProduce = (topic) => `#/produce${query({ topic })}`;
export const toGroup = (group) => `#/groups/${part(group)}`;
export const toGroupReset = (group) => `${toGroup(group)}/reset`;
export const toQueue = (group, topic) => `#/queues/${part(group)}/${part(topic)}`;
export const toDeadLetters = (topic) => `#/dead-letters/${part(topic)}`;
export const toDelayed = (topic) => `#/delayed${query({ topic })}`;
export const toSubjects = (where = {}) => `#/schemas${query(where)}`;
export const toSubject = (subject, where = {}) => `#/schemas/${part(subject)}${query(where)}`;
export const toSchemaCheck = (subject) => `#/schema-check${query({ subject })}`;
export const toUser = (user) => `#/users/${part(user)}`;
export const toRules = (principal) => `#/access-rules${query({ filter: principal })}`;
export const toNewRule = (where = {}) => `#/new-rule${query(where)}`;
export const toQuota = (entity) => `#/quotas/edit${query(entity)}`;
export const toApiKeys = (owner) => `#/api-keys${query({ filter: owner })}`;
export const toTenant = (tenant) => `#/tenants/${part(tenant)}`;
export const toTraces = (where = {}) => `#/traces${query(where)}`;
export const toTrace = (trace) => `#/traces/${part(trace)}`;
