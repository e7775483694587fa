#pragma once

#include "mezzo/cpp20.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mezzo::text {

/// The file of a model's weights in its folder.
inline constexpr const char* kWeightsFile = "model.safetensors";
/// The index of several weight files.
inline constexpr const char* kWeightsIndexFile = "model.safetensors.index.json";
/// The file of a LoRA adapter's weights.
inline constexpr const char* kAdapterWeightsFile = "adapter_model.safetensors";

/// Tensors with names, in order.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// Reads a `.safetensors` file, the format of Hugging Face models: a JSON header and the tensors'
/// bytes. The constructor checks the whole header and maps the file into memory. Tensors then cost
/// nothing until they are read. Copies share one mapping. Thread-safe.
///
/// @code
/// mezzo::text::SafetensorsReader file("model.safetensors");
/// for (const std::string& name : file.names()) model_parameters.at(name).copy_(file.tensor(name));
/// @endcode
///
/// @see safetensors.safe_open (Python), 0.8: accepts the same files, except with three errors that
///     the package ignores. These are white space before the header's '{', a repeated name (of a
///     tensor or in `__metadata__`), and an array or object in the wrong place.
class SafetensorsReader {
 public:
  /// The way tensors are read.
  enum class Access {
    kMapped,  ///< a tensor is the file's memory
    kRead     ///< a tensor is read on request; if the file has been truncated meanwhile, this is an error
  };

  /// @throws c10::ValueError  if `path` cannot be read or violates the format. Nothing outside the
  ///     file is ever read, whatever it contains.
  explicit SafetensorsReader(const std::filesystem::path& path, Access access = Access::kMapped);

  /// The names, in the order of their data in the file.
  std::vector<std::string> names() const;
  /// Whether the file has this tensor.
  bool contains(std::string_view name) const;

  /// With Access::kRead, a separate tensor. Otherwise a CPU tensor over the mapped bytes, which
  /// keeps the mapping alive and may outlive the reader. Unaligned data, which current writers
  /// never produce, are copied. F4 becomes kFloat4_e2m1fn_x2, two values per element, as in Python.
  ///
  /// Treat it as read-only: clone() or copy_() before you change values. A write would reach every
  /// tensor of this reader, but not the file. Replace the file by rename, as save_safetensors()
  /// does: truncating a mapped file in place kills the process that reads it.
  /// @throws c10::ValueError  for an unknown name; for types that torch lacks: the dtypes F6_E2M3
  ///     and F6_E3M2, a dimension above 2^63 - 1; with Access::kRead, if the file is shorter now
  at::Tensor tensor(std::string_view name) const;

  /// Returns the memory of a tensor's pages to the operating system. The next read reads the file
  /// again. Changes to the tensor are lost.
  /// @throws c10::ValueError  for an unknown name
  void release(std::string_view name) const;

  /// The header's `__metadata__`; empty if it has none.
  const std::map<std::string, std::string>& metadata() const;

 private:
  struct File;
  std::shared_ptr<const File> file_;
};

/// The names of the files that together hold a model's tensors, each once: the files in
/// "weight_map" of a `model.safetensors.index.json` by transformers. They are in the folder of
/// `index_json`.
/// @throws c10::ValueError  for a file that cannot be read, or names a file outside its folder
std::vector<std::string> shards_of(const std::filesystem::path& index_json);

/// Writes `tensors`. The file is byte-identical to Python's `safetensors.torch.save_file`, except
/// the order of several metadata keys: random there, sorted here. The largest element size comes
/// first, then names in order, so that every tensor is aligned. `path` is replaced as a whole or
/// not at all.
///
/// Tensors may be on any device and have any strides. Tensors that share memory are each written in
/// full. Tensors on devices are copied one at a time, which waits for the device.
/// @return the file's hash, as from AtomicFile::commit
/// @throws c10::ValueError  for a repeated or reserved name (`__metadata__`), or text that is not
///     UTF-8
/// @throws c10::ValueError  for a sparse or undefined tensor, a dtype that the format lacks
///     (complex128, quantized), and if writing fails
std::string save_safetensors(const std::filesystem::path& path,
                             const NamedTensors& tensors,
                             const std::map<std::string, std::string>& metadata = {});

}  // namespace mezzo::text
