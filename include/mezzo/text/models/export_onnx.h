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

/// A written ONNX file.
struct OnnxFile {
  std::vector<std::string> inputs;  ///< input_ids, attention_mask and, if the model reads them, token_type_ids
  int64_t opset = 0;                ///< version of ONNX's operators
  int64_t bytes = 0;                ///< size of the file
};

/// Writes the model as an ONNX graph, for onnxruntime and others. Atomic: the file is complete or
/// unchanged.
///
/// Its inputs are int64 [batch, sequence], both of any size. attention_mask is 0 for padding, which
/// comes after a text's tokens. Its output is `logits`, float32 [batch, outputs] or, with one row
/// per token, [batch, sequence, outputs].
/// @param model  with its weights, on CPU
/// @param precision  kFloat32 or kFloat16, of the weights and of the computation
/// @param metadata  texts to store in the file
/// @throws c10::ValueError  for another precision, weights beyond float16, or more than 2 GiB,
///     which is protobuf's limit
/// @throws c10::ValueError  for a file that cannot be written
OnnxFile export_onnx(const ModelForTask& model,
                     const std::filesystem::path& file,
                     Precision precision,
                     const std::map<std::string, std::string>& metadata = {});

}  // namespace mezzo::text
