// Forms that create a topic, and that change or delete one.

import { find, get, path, send } from "../api.js";
import { h, show } from "../dom.js";
import { toTopic } from "../links.js";
import { card, confirm, empty, field, form, heading, pairs, table, toast, trail } from "../parts.js";

export function newTopic(view) {
  const body = h("div", { class: "stack", "aria-busy": "true" });
  show(view.main, trail(["Topics", "#/topics"], ["New topic"]), heading("New topic"), body);
  settingNames(view.signal).then((known) => {
    if (view.signal.aborted) return;
    show(body, card(null, creation(known)));
    body.removeAttribute("aria-busy");
  });
  return "New topic";
}

function creation(known) {
  const name = h("input", { required: true, autocomplete: "off", pattern: "[a-zA-Z0-9._\\-]+", maxlength: 249, spellcheck: "false" });
  const number = () => h("input", { type: "number", min: 1, placeholder: "the broker's default", inputmode: "numeric" });
  const partitions = number();
  const replicas = number();
  const settings = pairs("Settings", "setting", known);
  const create = async () => {
    const wanted = { name: name.value, settings: Object.fromEntries(settings.values()) };
    if (partitions.value) wanted.partitions = Number(partitions.value);
    if (replicas.value) wanted.replication_factor = Number(replicas.value);
    await send("POST", "/topics", wanted);
    toast(`Topic ${wanted.name} is created.`);
    location.hash = toTopic(wanted.name);
  };
  return form(
    "Create",
    create,
    field("Name", name, "Letters, digits, dots, hyphens and underscores."),
    h("div", { class: "columns level" }, field("Partitions", partitions, "Can be added later, not removed."), field("Replicas", replicas)),
    settings.element,
  );
}

/** Suggest the names of settings, if there is a topic that has them. */
async function settingNames(signal) {
  try {
    const { topics } = await get("/topics", { limit: 1, internal: true }, signal);
    const described = topics.length ? await find(path`/topics/${topics[0].name}`, {}, signal) : null;
    return Object.keys(described?.settings ?? {});
  } catch {
    return []; // suggestions are optional
  }
}

export function topicChanges(view, { topic: name }) {
  const body = h("div", { class: "stack" });
  show(view.main, trail(["Topics", "#/topics"], [name, toTopic(name)], ["Edit"]), heading(`Edit ${name}`), body);
  const load = (signal) => get(path`/topics/${name}`, {}, signal);
  const draw = () => view.once(body, load, (described) => (described.internal ? empty("An internal topic cannot be changed.") : sections(described)));
  const sections = (described) => [
    card("Settings", settingsForm(described, draw)),
    card("Partitions", partitionsForm(described, draw)),
    card("Delete", deletion(name)),
  ];
  draw();
  return `Edit ${name}`;
}

function settingsForm({ name, settings, overrides }, changed) {
  const rows = Object.entries(settings)
    .sort(([one], [other]) => Number(other in overrides) - Number(one in overrides) || one.localeCompare(other))
    .map(([setting, value]) => ({ setting, value, input: h("input", { value, "aria-label": setting, autocomplete: "off", spellcheck: "false" }) }));
  const save = async () => {
    const wanted = rows.filter(({ input, value }) => input.value !== value).map(({ setting, input }) => [setting, input.value]);
    if (!wanted.length) throw new Error("no setting was changed");
    await send("PATCH", path`/topics/${name}/settings`, { settings: Object.fromEntries(wanted) });
    toast(`Changed ${wanted.map(([setting]) => setting).join(", ")}.`);
    await changed();
  };
  const reset = async (setting) => {
    await send("PATCH", path`/topics/${name}/settings`, { settings: { [setting]: null } });
    toast(`${setting} has its default again.`);
    await changed();
  };
  const own = ({ setting }) => h("button", { type: "button", class: "quiet", "aria-label": `Reset ${setting}`, on: { click: () => reset(setting).catch((error) => toast(error.message, "bad")) } }, "Reset");
  const filter = h("input", { type: "search", placeholder: "Filter by name", "aria-label": "Filter settings by name", autocomplete: "off", spellcheck: "false" });
  const narrow = () => rows.forEach(({ setting, input }) => (input.closest("tr").hidden = !setting.includes(filter.value.trim().toLowerCase())));
  filter.addEventListener("input", narrow);
  const list = form(
    "Save",
    save,
    table(
      [
        { label: "Setting", kind: "name", cell: ({ setting }) => setting },
        { label: "Value", cell: ({ input }) => input },
        { label: "", cell: (row) => (row.setting in overrides ? own(row) : null) },
      ],
      rows,
      { key: ({ setting, value }) => `${setting}=${value}`, label: "Settings" },
    ),
  );
  return [h("div", { class: "tools" }, filter), list];
}

function partitionsForm({ name, partitions }, changed) {
  const total = h("input", { type: "number", min: partitions.length + 1, required: true, value: partitions.length + 1, inputmode: "numeric" });
  const add = async () => {
    await send("POST", path`/admin/topics/${name}/partitions`, { partitions: Number(total.value) });
    toast(`Topic ${name} has ${total.value} partitions.`);
    await changed();
  };
  return form("Add partitions", add, field("Partitions in total", total, `Now ${partitions.length}. Keys may map to other partitions than before, and partitions cannot be removed.`));
}

function deletion(name) {
  const drop = async () => {
    if (!(await confirm(`Delete ${name}?`, "All its messages are deleted, on all nodes. This cannot be undone.", "Delete", name))) return;
    try {
      await send("DELETE", path`/topics/${name}`);
      toast(`Topic ${name} is deleted.`);
      location.hash = "#/topics";
    } catch (error) {
      toast(error.message, "bad");
    }
  };
  return [h("p", { class: "note" }, "Committed offsets, queues and delayed messages of the topic go with it."), h("div", { class: "actions below" }, h("button", { type: "button", class: "danger", on: { click: drop } }, "Delete topic"))];
}
