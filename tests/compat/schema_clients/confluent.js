// Uses a registry with Confluent's client: `node confluent.js URL COMMAND [INPUT]`, a JSON object as output.
const {
  AvroDeserializer, AvroSerializer, HeaderSchemaIdSerializer, JsonDeserializer, JsonSerializer,
  ProtobufDeserializer, ProtobufSerializer, SchemaRegistryClient, SerdeType,
} = require("@confluentinc/schemaregistry");
const { create, createFileRegistry, createMutableRegistry, fromBinary, toJson } = require("@bufbuild/protobuf");
const { FileDescriptorProtoSchema, FileDescriptorSetSchema } = require("@bufbuild/protobuf/wkt");

const [url, command, input] = process.argv.slice(2);
const request = input ? JSON.parse(input) : {};
const client = new SchemaRegistryClient({ baseURLs: [url] });

// Returns what a call returns, or the code of its error.
async function attempt(call) {
  try {
    return await call();
  } catch (error) {
    return { error_code: error.errorCode ?? String(error), status: error.status };
  }
}

async function administer() {
  const { subject, first, second, incompatible, other } = request;
  const info = { schema: first, schemaType: "AVRO" };
  const id = await client.register(subject, info);
  const again = await client.registerFullResponse(subject, info);
  const next = await client.registerFullResponse(subject, { schema: second, schemaType: "AVRO" });
  const byGuid = await client.getByGuid(again.guid);
  const found = {
    id,
    again: again.id,
    version: await client.getVersion(subject, info, false, false),
    next: next.id,
    byId: (await client.getBySubjectAndId(subject, id)).schema,
    byGuid: byGuid.schema,
    latest: (await client.getLatestSchemaMetadata(subject)).version,
    versions: await client.getAllVersions(subject),
    compatible: await client.testSubjectCompatibility(subject, { schema: second, schemaType: "AVRO" }),
    incompatible: await client.testCompatibility(subject, 1, { schema: incompatible, schemaType: "AVRO" }),
    refused: await attempt(() => client.register(subject, { schema: incompatible, schemaType: "AVRO" })),
    invalid: await attempt(() => client.register(other, { schema: "{", schemaType: "AVRO" })),
    level: await client.updateCompatibility(subject, "FULL_TRANSITIVE"),
    readLevel: await client.getCompatibility(subject),
    defaultLevel: await client.getDefaultCompatibility(),
    config: (await client.updateConfig(subject, { compatibility: "NONE", normalize: true })).normalize,
    missingConfig: await attempt(() => client.getConfig(other)),
  };
  await client.register(other, {
    schema: first,
    schemaType: "AVRO",
    metadata: { properties: { owner: "parcels" } },
    ruleSet: { domainRules: [{ name: "check", kind: "CONDITION", type: "CEL", mode: "WRITE", expr: "true" }] },
  });
  const withMetadata = await client.getLatestWithMetadata(other, { owner: "parcels" });
  found.metadata = withMetadata.metadata.properties;
  found.rule = withMetadata.ruleSet.domainRules[0].name;
  found.deletedVersion = await client.deleteSubjectVersion(subject, 1, false);
  found.hidden = await attempt(() => client.getSchemaMetadata(subject, 1, false));
  found.stillThere = (await client.getSchemaMetadata(subject, 1, true)).version;
  found.tooEarly = await attempt(() => client.deleteSubject(subject, true));
  found.deleted = await client.deleteSubject(subject, false);
  found.removed = await client.deleteSubject(subject, true);
  client.clearCaches();
  found.gone = await attempt(() => client.getAllVersions(subject));
  return found;
}

// A message type from a serialized descriptor, as generated code would have it.
function messageType(descriptor, name) {
  const file = fromBinary(FileDescriptorProtoSchema, Buffer.from(descriptor, "base64"));
  return createFileRegistry(create(FileDescriptorSetSchema, { file: [file] })).getMessage(name);
}

async function write() {
  const { topic, type, schema, value, header, message } = request;
  const settings = {
    autoRegisterSchemas: type === "PROTOBUF",
    useLatestVersion: type !== "PROTOBUF",
    ...(header ? { schemaIdSerializer: HeaderSchemaIdSerializer } : {}),
  };
  const headers = {};
  let data;
  if (type === "PROTOBUF") {
    const kind = messageType(schema, message);
    const serializer = new ProtobufSerializer(client, SerdeType.VALUE, { ...settings, registry: createMutableRegistry(kind) });
    data = await serializer.serialize(topic, create(kind, value), headers);
  } else {
    await client.register(`${topic}-value`, { schema, schemaType: type });
    const kind = type === "AVRO" ? AvroSerializer : JsonSerializer;
    data = await new kind(client, SerdeType.VALUE, settings).serialize(topic, value, headers);
  }
  const written = Object.entries(headers).map(([name, each]) => [name, Buffer.from(each).toString("base64")]);
  return { data: data.toString("base64"), headers: Object.fromEntries(written) };
}

async function read() {
  const { topic, type, data, headers } = request;
  const kind = { AVRO: AvroDeserializer, JSON: JsonDeserializer, PROTOBUF: ProtobufDeserializer }[type];
  const decoded = Object.entries(headers ?? {}).map(([name, each]) => [name, Buffer.from(each, "base64")]);
  const deserializer = new kind(client, SerdeType.VALUE, {});
  const value = await deserializer.deserialize(topic, Buffer.from(data, "base64"), Object.fromEntries(decoded));
  if (type !== "PROTOBUF") return { value };
  const { $typeName, $unknown, ...fields } = value;
  return { value: fields, message: $typeName };
}

({ administer, write, read })[command]().then(
  (found) => console.log(JSON.stringify(found, (_, each) => (typeof each === "bigint" ? Number(each) : each))),
  (error) => { console.error(error); process.exit(1); },
);
