// The routes of all pages. The fragment of an address is a path of names and a query.

import { apiKeys, newApiKey } from "./pages/api_keys.js";
import { accessRules, newRule } from "./pages/access_rules.js";
import { cluster } from "./pages/cluster.js";
import { delayed } from "./pages/delayed.js";
import { group, groups } from "./pages/groups.js";
import { groupReset } from "./pages/group_reset.js";
import { messages } from "./pages/messages.js";
import { overview } from "./pages/overview.js";
import { pipelines } from "./pages/pipelines.js";
import { produce } from "./pages/produce.js";
import { quotaChanges, quotas } from "./pages/quotas.js";
import { deadLetters, queue, queues } from "./pages/queues.js";
import { schemaCheck } from "./pages/schema_check.js";
import { subject, subjects } from "./pages/schemas.js";
import { newTenant, tenant, tenants } from "./pages/tenants.js";
import { newTopic, topicChanges } from "./pages/topic_changes.js";
import { topic, topics } from "./pages/topics.js";
import { trace, traces } from "./pages/traces.js";
import { newUser, user, users } from "./pages/users.js";

// `begins` is the heading of those from here on.
export const PAGES = [
  { name: "Overview", href: "#/", key: "o" },
  { name: "Topics", href: "#/topics", key: "t" },
  { name: "Messages", href: "#/messages", key: "m" },
  { name: "Produce", href: "#/produce", key: "p" },
  { name: "Groups", href: "#/groups", key: "g" },
  { name: "Queues", href: "#/queues", key: "q" },
  { name: "Delayed", href: "#/delayed", key: "d" },
  { name: "Schemas", href: "#/schemas", key: "s" },
  { name: "Traces", href: "#/traces", key: "r" },
  { name: "Pipelines", href: "#/pipelines", key: "l" },
  { name: "Cluster", href: "#/cluster", key: "c" },
  { name: "Users", href: "#/users", key: "u", begins: "Access" },
  { name: "Access rules", href: "#/access-rules", key: "a" },
  { name: "Quotas", href: "#/quotas", key: "x" },
  { name: "API keys", href: "#/api-keys", key: "k" },
  { name: "Tenants", href: "#/tenants", key: "n" },
];

// A part that begins with a colon is a parameter.
const ROUTES = [
  ["", overview, "Overview"],
  ["topics", topics, "Topics"],
  ["topics/:topic", topic, "Topics"],
  ["topics/:topic/edit", topicChanges, "Topics"],
  ["new-topic", newTopic, "Topics"],
  ["messages", messages, "Messages"],
  ["messages/:topic", messages, "Messages"],
  ["produce", produce, "Produce"],
  ["groups", groups, "Groups"],
  ["groups/:group", group, "Groups"],
  ["groups/:group/reset", groupReset, "Groups"],
  ["queues", queues, "Queues"],
  ["queues/:group/:topic", queue, "Queues"],
  ["dead-letters/:topic", deadLetters, "Queues"],
  ["delayed", delayed, "Delayed"],
  ["schemas", subjects, "Schemas"],
  ["schemas/:subject", subject, "Schemas"],
  ["schema-check", schemaCheck, "Schemas"],
  ["traces", traces, "Traces"],
  ["traces/:trace", trace, "Traces"],
  ["pipelines", pipelines, "Pipelines"],
  ["cluster", cluster, "Cluster"],
  ["users", users, "Users"],
  ["users/:user", user, "Users"],
  ["new-user", newUser, "Users"],
  ["access-rules", accessRules, "Access rules"],
  ["new-rule", newRule, "Access rules"],
  ["quotas", quotas, "Quotas"],
  ["quotas/edit", quotaChanges, "Quotas"],
  ["api-keys", apiKeys, "API keys"],
  ["new-api-key", newApiKey, "API keys"],
  ["tenants", tenants, "Tenants"],
  ["tenants/:tenant", tenant, "Tenants"],
  ["new-tenant", newTenant, "Tenants"],
].map(([route, page, section]) => ({ parts: route.split("/"), page, section }));

/** Return the page of an address, its parameters and query; the page is undefined if unknown. */
export function pageAt(hash) {
  const [path, search = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const query = new URLSearchParams(search);
  let given;
  try {
    given = path.split("/").map(decodeURIComponent);
  } catch {
    return { names: {}, query };
  }
  for (const { parts, page, section } of ROUTES) {
    if (parts.length !== given.length) continue;
    const names = {};
    const fits = parts.every((part, at) => {
      if (part.startsWith(":") && given[at]) names[part.slice(1)] = given[at];
      return part.startsWith(":") ? given[at] !== "" : part === given[at];
    });
    if (fits) return { page, names, query, section };
  }
  return { names: {}, query };
}
