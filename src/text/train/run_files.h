#pragma once

#include <array>

#include "mezzo/text/io/safetensors.h"

namespace mezzo::text {

/// What a run writes into its folder, beside run.json, tensorboard/ and checkpoints/, and what `mezzo check-int8`
/// adds there about its weights.
inline constexpr std::array kRunFiles = {"metrics.jsonl", kWeightsFile,     "config.json",
                                         "vocab.txt",     "tokenizer.json", "tokenizer_config.json",
                                         "report.html",   "int8.json"};

/// The folder in which a run with --lora leaves its adapter.
inline constexpr const char* kAdapterFolder = "adapter";

}  // namespace mezzo::text
