#pragma once

#include "mezzo/cpp20.h"

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "mezzo/text/models/model_for_task.h"
#include "mezzo/text/models/precision.h"

namespace mezzo::text {

/// What was written.
struct OnnxFile {
  std::vector<std::string> inputs;  ///< input_ids, attention_mask and, where the model reads them, token_type_ids
  int64_t opset = 0;
  int64_t bytes = 0;
};

/// Writes the model as an ONNX graph, for onnxruntime and others. Its inputs are int64 [batch, sequence], both of any
/// size, with an attention_mask of 0 for padding, which comes behind a text's tokens; its output is `logits`, float32
/// [batch, outputs] or, with a row a token, [batch, sequence, outputs]. Atomic: the file is complete or untouched.
/// @param model  with its weights, on CPU.
/// @param precision  kFloat32 or kFloat16, which weights are kept and computed with.
/// @param metadata  texts for whoever loads it.
/// @throws c10::ValueError  for another precision, weights beyond float16, more than 2 GiB, which is protobuf's limit,
/// or
///   a file that cannot be written.
OnnxFile export_onnx(const ModelForTask& model,
                     const std::filesystem::path& file,
                     Precision precision,
                     const std::map<std::string, std::string>& metadata = {});

}  // namespace mezzo::text
