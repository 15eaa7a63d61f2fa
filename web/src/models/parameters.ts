// What PARAMETER takes: the options of src/puna/options.py.

export type ParameterKind = "whole" | "number" | "yes or no" | "text" | "texts";

export const PARAMETERS: Readonly<Record<string, ParameterKind>> = {
  num_ctx: "whole",
  num_batch: "whole",
  engine: "text",
  num_gpu: "whole",
  main_gpu: "whole",
  tensor_split: "text",
  use_mmap: "yes or no",
  num_thread: "whole",
  draft: "text",
  replicas: "text",
  speculate: "text",
  num_keep: "whole",
  num_predict: "whole",
  stop: "texts",
  seed: "whole",
  temperature: "number",
  top_k: "whole",
  top_p: "number",
  min_p: "number",
  typical_p: "number",
  repeat_last_n: "whole",
  repeat_penalty: "number",
  presence_penalty: "number",
  frequency_penalty: "number",
  logit_bias: "text",
  banned_tokens: "text",
  min_tokens: "whole",
  top_n_sigma: "number",
  xtc_probability: "number",
  xtc_threshold: "number",
  dynatemp_range: "number",
  dynatemp_exponent: "number",
  dry_multiplier: "number",
  dry_base: "number",
  dry_allowed_length: "whole",
  dry_penalty_last_n: "whole",
  dry_sequence_breakers: "text",
};

/** Parameters of older versions, which change nothing. */
export const DEPRECATED: readonly string[] = [
  "penalize_newline",
  "low_vram",
  "f16_kv",
  "logits_all",
  "vocab_only",
  "use_mlock",
  "mirostat",
  "mirostat_tau",
  "mirostat_eta",
];

const YES = ["1", "t", "T", "TRUE", "true", "True"];
const NO = ["0", "f", "F", "FALSE", "false", "False"];

/** Return a parameter's value, or undefined if the text is none of its kind. */
export function parameterValue(kind: ParameterKind, text: string): number | boolean | string | undefined {
  switch (kind) {
    case "yes or no":
      return YES.includes(text) ? true : NO.includes(text) ? false : undefined;
    case "whole":
      return /^[+-]?\d{1,19}$/.test(text) ? Number(text) : undefined;
    case "number":
      return /^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?$/.test(text) ? Number(text) : undefined;
    default:
      return text;
  }
}

/** The types that models are quantised to, largest first, and what each means for a newcomer. */
export const QUANTISATIONS: readonly { type: string; about: string }[] = [
  { type: "F32", about: "every number as it is, twice the size of F16" },
  { type: "F16", about: "half precision" },
  { type: "BF16", about: "half precision, as most models are published" },
  { type: "Q8_0", about: "8 bits: half the size of F16, hardly a difference" },
  { type: "Q6_K", about: "6 bits: very close to F16" },
  { type: "Q5_K_M", about: "5 bits" },
  { type: "Q5_K_S", about: "5 bits, a little smaller" },
  { type: "Q5_1", about: "5 bits, older" },
  { type: "Q5_0", about: "5 bits, older" },
  { type: "Q4_K_M", about: "4 bits: about a quarter of F16, the usual choice" },
  { type: "Q4_K_S", about: "4 bits, a little smaller" },
  { type: "Q4_1", about: "4 bits, older" },
  { type: "Q4_0", about: "4 bits, older" },
  { type: "IQ4_NL", about: "4 bits, unevenly spaced" },
  { type: "IQ4_XS", about: "4 bits, smaller" },
  { type: "MXFP4_MOE", about: "4-bit floats for models of experts" },
  { type: "Q3_K_L", about: "3 bits" },
  { type: "Q3_K_M", about: "3 bits" },
  { type: "Q3_K_S", about: "3 bits, smaller" },
  { type: "Q2_K", about: "2 bits: answers suffer" },
  { type: "Q2_K_S", about: "2 bits, smaller: answers suffer" },
  { type: "TQ2_0", about: "for models of three values" },
  { type: "TQ1_0", about: "for models of three values, smaller" },
];
