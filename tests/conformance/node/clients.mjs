// The npm packages `openai` and `ai` against a running service: BASE_URL and TOKEN come from the environment.
import assert from "node:assert/strict";
import { createOpenAI } from "@ai-sdk/openai";
import { experimental_decide as decide } from "ai";
import OpenAI from "openai";

const { BASE_URL: baseURL, TOKEN: apiKey } = process.env;
globalThis.AI_SDK_LOG_WARNINGS = false;

const close = (one, other) => Math.abs(one - other) < 1e-6;
const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);
const fake = (script) => [{ role: "user", content: [{ type: "input_json", data: { fake: script } }] }];

const client = new OpenAI({ baseURL, apiKey });
const predicate = { type: "predicate", name: "urgent", instructions: "Urgent?" };

const checks = {
  "openai: every question type": async () => {
    const answer = await client.decisions.create({
      model: "any",
      input: [{ role: "user", content: [{ type: "input_text", text: "Charged twice." }] }],
      questions: [
        predicate,
        { type: "choice", instructions: "Paid?", choices: [{ value: true }, { value: false }] },
        { type: "score", name: "anger", instructions: "How angry?", levels: [{ label: "x" }, { label: "x" }] },
      ],
    });
    assert.deepEqual(Object.keys(answer).filter((name) => !name.startsWith("_")), ["model", "answers", "usage"]);
    const [urgent, paid, anger] = answer.answers;
    assert.equal(urgent.name, "urgent");
    assert.equal(paid.name, null);
    assert.equal(typeof paid.choice, "boolean");
    assert.deepEqual(paid.probabilities.map((item) => item.value), [true, false]);
    assert.deepEqual(anger.probabilities.map((item) => item.value), [0, 1]);
    assert.ok(close(sum(anger.probabilities.map((item) => item.probability)), 1));
    assert.equal(answer.usage.total_tokens, answer.usage.input_tokens);
    assert.match(answer._request_id, /^req_/);
  },
  "openai: a refused part": async () => {
    const input = [{ role: "developer", content: "d" }];
    await assert.rejects(client.decisions.create({ model: "any", input, questions: [predicate] }), (error) => {
      assert.ok(error instanceof OpenAI.BadRequestError);
      assert.equal(error.param, "input[0].role");
      assert.equal(error.code, "unsupported_value");
      assert.match(error.requestID, /^req_/);
      return true;
    });
  },
  "openai: a wrong key": async () => {
    const stranger = new OpenAI({ baseURL, apiKey: "wrong-key" });
    const asked = stranger.decisions.create({ model: "any", input: "x", questions: [predicate] });
    await assert.rejects(asked, OpenAI.AuthenticationError);
  },
  "openai: a failure that would repeat itself is one attempt": async () => {
    let attempts = 0;
    const counting = new OpenAI({ baseURL, apiKey, fetch: (...call) => (attempts++, fetch(...call)) });
    const input = fake({ error: ["runtime", "boom"] });
    const asked = counting.decisions.create({ model: "any", input, questions: [predicate] });
    await assert.rejects(asked, OpenAI.InternalServerError);
    assert.equal(attempts, 1);
  },
  "ai: every question type": async () => {
    const model = createOpenAI({ baseURL, apiKey }).decisionModel("any");
    for (const state of ["Charged twice.", { ticket: [1, null] }, [{ type: "text", text: "Charged twice." }]]) {
      const { answers, usage, response } = await decide({
        model,
        state,
        questions: {
          urgent: { type: "boolean", instructions: "Urgent?", criteria: { true: "today", false: null } },
          team: { type: "choice", instructions: "Which team?", criteria: { billing: "Payments", tech: null } },
          anger: { type: "score", instructions: "How angry?", criteria: ["calm", "annoyed", "angry"] },
        },
      });
      assert.deepEqual(Object.keys(answers), ["urgent", "team", "anger"]);
      assert.ok(answers.urgent.probability >= 0 && answers.urgent.probability <= 1);
      assert.ok(["billing", "tech"].includes(answers.team.choice));
      assert.ok(answers.anger.score >= 0 && answers.anger.score <= 2);
      assert.ok(usage.inputTokens > 0);
      assert.equal(response.modelId, "fake@0");
    }
  },
  "ai: an error is told by its message": async () => {
    const model = createOpenAI({ baseURL, apiKey: "wrong-key" }).decisionModel("any");
    const questions = { urgent: { type: "boolean", instructions: "Urgent?" } };
    await assert.rejects(decide({ model, state: "x", questions }), (error) => {
      assert.equal(error.statusCode, 401);
      assert.match(error.message, /bearer/);
      return true;
    });
  },
};

for (const [name, check] of Object.entries(checks)) {
  try {
    await check();
    console.log(`ok ${name}`);
  } catch (error) {
    console.log(`not ok ${name}`);
    console.error(error);
    process.exitCode = 1;
  }
}
