// Load on the HTTP and SQS APIs, for k6: k6 run deploy/load/http.js; see docs/guide/deployment.md.
//
//   BASE       the HTTP API, http://localhost:8080
//   SQS        the SQS API, http://localhost:9324
//   RATE       requests a second of each scenario, 500
//   DURATION   30s
//   ONLY       one scenario: publish, consume, queue, sqs, spike or soak
//   KEY        an API key, if the broker requires authentication
//
// Thresholds are promises: k6 exits with 99 if one does not hold.
import http from "k6/http";
import { check } from "k6";
import exec from "k6/execution";

const base = __ENV.BASE || "http://localhost:8080";
const sqs = __ENV.SQS || "http://localhost:9324";
const rate = Number(__ENV.RATE || 500);
const duration = __ENV.DURATION || "30s";
const only = __ENV.ONLY;
const topic = `load-${__ENV.RUN || "k6"}`;
const json = { "Content-Type": "application/json" };
if (__ENV.KEY) json.Authorization = `Bearer ${__ENV.KEY}`;
const value = "x".repeat(100);

const constant = (name, more) => ({
    executor: "constant-arrival-rate", exec: name, rate, timeUnit: "1s", duration,
    preAllocatedVUs: 50, maxVUs: 500, ...more,
});
const all = {
    publish: constant("publish"),
    consume: constant("consume"),
    queue: constant("queue"),
    sqs: constant("sqsRoundTrip", { rate: Math.ceil(rate / 3) }),
    // Ten times the load for ten seconds: requests may wait, none may fail.
    spike: {
        executor: "ramping-arrival-rate", exec: "publish", startRate: rate, timeUnit: "1s",
        preAllocatedVUs: 100, maxVUs: 1000,
        stages: [
            { target: rate, duration: "5s" }, { target: 10 * rate, duration: "1s" },
            { target: 10 * rate, duration: "10s" }, { target: rate, duration: "1s" }, { target: rate, duration: "5s" },
        ],
    },
    soak: constant("queue", { duration: __ENV.SOAK || "1h" }),
};
const usual = ["publish", "consume", "queue", "sqs"];

export const options = {
    scenarios: Object.fromEntries(Object.entries(all).filter(([name]) => (only ? name === only : usual.includes(name)))),
    summaryTrendStats: ["avg", "p(50)", "p(95)", "p(99)", "max"],
    thresholds: {
        "http_req_failed": ["rate<0.0001"],
        "checks": ["rate>0.9999"],
        "dropped_iterations": ["count<1"],
        "http_req_duration{kind:publish}": only === "spike" ? [] : ["p(99)<10"],
        "http_req_duration{kind:settle}": ["p(99)<10"],
    },
};

export function setup() {
    const made = http.post(`${base}/topics`, JSON.stringify({ name: topic, partitions: 3 }), {
        headers: json, responseCallback: http.expectedStatuses(201, 200, 409),
    });
    check(made, { "the topic is there": (r) => r.status < 300 || r.status === 409 });
    const queue = http.post(sqs, JSON.stringify({ QueueName: topic }), { headers: action("CreateQueue") });
    return { url: queue.json("QueueUrl") };
}

export function publish() {
    const sent = http.post(`${base}/topics/${topic}/messages`, JSON.stringify({ value }), {
        headers: json, tags: { kind: "publish", name: "publish" },
    });
    check(sent, { published: (r) => r.status < 300 });
}

export function consume() {
    const partition = exec.scenario.iterationInTest % 3;
    const read = http.get(`${base}/topics/${topic}/partitions/${partition}/messages?limit=10`, {
        headers: json, tags: { kind: "read", name: "read" },
    });
    check(read, { read: (r) => r.status === 200 });
}

export function queue() {
    publish();
    const polled = http.get(`${base}/groups/load/poll?topic=${topic}&max=1&wait_ms=1000`, {
        headers: json, tags: { kind: "receive", name: "receive" },
    });
    check(polled, { received: (r) => r.status === 200 });
    const receipts = (polled.json("messages") || []).map((each) => each.receipt);
    if (receipts.length) {
        const acked = http.post(`${base}/messages/ack`, JSON.stringify({ receipts }), {
            headers: json, tags: { kind: "settle", name: "ack" },
        });
        check(acked, { acknowledged: (r) => r.status === 200 });
    }
}

function action(name) {
    return { "Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": `AmazonSQS.${name}` };
}

export function sqsRoundTrip(data) {
    const call = (name, body) =>
        http.post(sqs, JSON.stringify({ QueueUrl: data.url, ...body }), {
            headers: action(name), tags: { kind: "sqs", name },
        });
    check(call("SendMessage", { MessageBody: value }), { "sent over SQS": (r) => r.status === 200 });
    const received = call("ReceiveMessage", { MaxNumberOfMessages: 1, WaitTimeSeconds: 1 });
    check(received, { "received over SQS": (r) => r.status === 200 });
    for (const message of received.json("Messages") || []) {
        check(call("DeleteMessage", { ReceiptHandle: message.ReceiptHandle }), {
            "deleted over SQS": (r) => r.status === 200,
        });
    }
}
