// The routes of all pages. The fragment of an address is a path of names and a query.

import { cluster } from "./pages/cluster.js";
import { delayed } from "./pages/delayed.js";
import { group, groups } from "./pages/groups.js";
import { groupReset } from "./pages/group_reset.js";
import { messages } from "./pages/messages.js";
import { overview } from "./pages/overview.js";
import { pipelines } from "./pages/pipelines.js";
import { produce } from "./pages/produce.js";
import { deadLetters, queue, queues } from "./pages/queues.js";
import { schemaCheck } from "./pages/schema_check.js";
import { subject, subjects } from "./pages/schemas.js";
import { newTopic, topicChanges } from "./pages/topic_changes.js";
import { topic, topics } from "./pages/topics.js";
import { trace, traces } from "./pages/traces.js";

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
