// Uses a registry with the client of KafkaJS: `node kafkajs.js URL COMMAND INPUT`, a JSON object as output.
const { SchemaRegistry, SchemaType } = require("@kafkajs/confluent-schema-registry");

const [url, command, input] = process.argv.slice(2);
const request = JSON.parse(input);
const registry = new SchemaRegistry({ host: url });

async function write() {
  const { topic, type, schema, value, references } = request;
  const { id } = await registry.register(
    { type: SchemaType[type], schema, references },
    { subject: `${topic}-value` },
  );
  const latest = await registry.getLatestSchemaId(`${topic}-value`);
  const data = await registry.encode(id, value);
  return { id, latest, data: data.toString("base64") };
}

async function read() {
  return { value: await registry.decode(Buffer.from(request.data, "base64")) };
}

({ write, read })[command]().then(
  (found) => console.log(JSON.stringify(found)),
  (error) => { console.error(error); process.exit(1); },
);
