#pragma once

#include <array>

namespace mezzo::text {

/// What a run writes into its folder, beside run.json, tensorboard/ and checkpoints/, and what `mezzo quantize`
/// adds there about its weights.
inline constexpr std::array kRunFiles = {"metrics.jsonl",  "model.safetensors",     "config.json", "vocab.txt",
                                         "tokenizer.json", "tokenizer_config.json", "report.html", "int8.json"};

/// Where a run with --lora leaves its adapter.
inline constexpr const char* kAdapterFolder = "adapter";

}  // namespace mezzo::text
