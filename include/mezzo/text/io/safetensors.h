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

/// Files of a model's folder: all weights, or the list of the files that share them; an adapter's weights.
inline constexpr const char *kWeightsFile = "model.safetensors", *kWeightsIndexFile = "model.safetensors.index.json",
                            *kAdapterWeightsFile = "adapter_model.safetensors";

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// Reads a `.safetensors` file, the format of Hugging Face models: a JSON header and the tensors'
/// bytes. Opening checks all of the header, and maps the file into memory: tensors then cost nothing
/// until they are read. Copies share one mapping. Thread-safe.
///
/// @code
/// mezzo::text::SafetensorsReader file("model.safetensors");
/// for (const std::string& name : file.names()) model_parameters.at(name).copy_(file.tensor(name));
/// @endcode
///
/// @see safetensors.safe_open (Python), 0.8: accepts the same files, but for what the format
///     forbids and the package lets pass: white space before the header's '{', one name twice (of a
///     tensor or in `__metadata__`), and a tensor described by an array, or a dtype by an object.
class SafetensorsReader {
 public:
  enum class Access {
    kMapped,  ///< a tensor is the file's memory
    kRead  ///< a tensor is read when it is asked for: the file may be changed or cut off meanwhile, which is an error
           ///< then
  };

  /// @throws c10::ValueError  when `path` cannot be read or breaks a rule of the format. Nothing
  ///     outside the file is ever read, whatever it says.
  explicit SafetensorsReader(const std::filesystem::path& path, Access access = Access::kMapped);

  /// In the order of their data in the file.
  std::vector<std::string> names() const;
  bool contains(std::string_view name) const;

  /// With Access::kRead a tensor of its own. Else a CPU tensor over the mapped bytes; it keeps the mapping alive, so it
  /// may outlive the reader. Only data off the dtype's alignment, which current writers never place, is copied. F4
  /// comes as kFloat4_e2m1fn_x2, two values an element, as in Python.
  ///
  /// Treat it as read-only: clone() or copy_() before changing values. A write would be seen by
  /// every tensor of this reader, though never by the file. And replace the file by rename, as
  /// save_safetensors() does: truncating a mapped file in place kills the process that reads it.
  /// @throws c10::ValueError  for an unknown name, and for what torch cannot hold: the dtypes
  ///     F6_E2M3 and F6_E3M2, a dimension above 2^63 - 1; with Access::kRead, where the file is shorter by now
  at::Tensor tensor(std::string_view name) const;

  /// Hands the memory that reading a tensor took back to the operating system; read again, it is
  /// read from the file again. Changes that were written to it are lost.
  /// @throws c10::ValueError  for an unknown name
  void release(std::string_view name) const;

  /// The header's `__metadata__`; empty where it has none.
  const std::map<std::string, std::string>& metadata() const;

 private:
  struct File;
  std::shared_ptr<const File> file_;
};

/// The names of the files in the folder of `index_json` that hold a model's tensors together, each once: those that
/// "weight_map" names, in a `model.safetensors.index.json` as transformers writes it.
/// @throws c10::ValueError  for a file that cannot be read, or names a file outside its folder.
std::vector<std::string> shards_of(const std::filesystem::path& index_json);

/// Writes `tensors`, byte for byte the file that Python's `safetensors.torch.save_file` writes,
/// except that it orders several metadata keys at random and here they are sorted. Largest element
/// size first, then by name, whatever the order given, so that every tensor is aligned. Tensors may
/// be on any device and in any strides; those that share memory are each written in full. Waits for
/// the device of tensors that are not on the CPU, which are copied one at a time. `path` is
/// replaced whole or not at all.
/// @return the file's hash, as AtomicFile::commit gives it
/// @throws c10::ValueError  for a repeated or reserved name (`__metadata__`), text that is not
///     UTF-8, a sparse or undefined tensor, a dtype the format has none for (complex128,
///     quantized), and when writing fails
std::string save_safetensors(const std::filesystem::path& path,
                             const NamedTensors& tensors,
                             const std::map<std::string, std::string>& metadata = {});

}  // namespace mezzo::text
