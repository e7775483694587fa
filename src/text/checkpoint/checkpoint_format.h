#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mezzo/text/checkpoint/checkpoint.h"

/// The contents of a checkpoint's folder, step-N.
namespace mezzo::text::checkpoint_format {

constexpr const char* kWeights = "weights.safetensors";
constexpr const char* kOptimizer = "optimizer.safetensors";
constexpr const char* kAverage = "average.safetensors";       // only with --ema-decay
constexpr const char* kAdapter = "best_adapter.safetensors";  // only with --lora, after the first evaluation
constexpr const char* kBest = "best.safetensors";             // only if the best weights are not in kWeights
constexpr const char* kState = "state.json";
constexpr const char* kManifest = "manifest.json";
inline constexpr std::array kFiles = {kWeights, kOptimizer, kAverage, kAdapter, kBest, kState, kManifest};

/// The files of tensors. Those of no tensors are left out, except `is_required` ones.
struct TensorFile {
  const char* name;
  NamedTensors Checkpoint::* tensors;
  bool is_required;
};
inline constexpr TensorFile kTensorFiles[] = {{kWeights, &Checkpoint::weights, true},
                                              {kOptimizer, &Checkpoint::optimizer, true},
                                              {kAverage, &Checkpoint::average, false},
                                              {kAdapter, &Checkpoint::best_adapter, false}};

using List = std::vector<std::pair<int64_t, std::filesystem::path>>;

/// Checkpoints of `folder` by step, newest first. A step may have two, the new one first, if a process was killed while
/// it replaced the checkpoint. Empty if the folder is missing.
/// @throws c10::ValueError  if it cannot be read, which says nothing about its contents.
List list(const std::filesystem::path& folder);

/// The folders that list() leaves out: without a whole manifest.json, the file that is written last.
List list_incomplete(const std::filesystem::path& folder);

/// Whether `checkpoint` was being replaced, and the checkpoint in its place is in `found`.
bool has_successor(const std::filesystem::path& checkpoint, const List& found);

std::filesystem::path path(const std::filesystem::path& folder, int64_t step);
/// The folder in which a checkpoint is written or removed: a name that is free.
std::filesystem::path path_aside(const std::filesystem::path& folder, int64_t step);
bool is_aside(const std::filesystem::path& path);
/// The folder in which a checkpoint waits until another is in its place: a name that is free.
std::filesystem::path path_replaced(const std::filesystem::path& folder, int64_t step);
bool is_replaced(const std::filesystem::path& path);

nlohmann::ordered_json to_json(const RunIdentity& identity);
RunIdentity identity_from_json(const nlohmann::ordered_json& json);

/// All of state.json.
std::string state_text(const Checkpoint& checkpoint);

/// manifest.json: hashes of the other files, and the program that wrote them.
struct Manifest {
  struct File {
    int64_t bytes = 0;
    std::string hash;
  };
  std::map<std::string, File> files;  // by name
  RunIdentity::Values environment;
};

std::string manifest_text(const Manifest& manifest);
/// @throws c10::ValueError  if it is missing, damaged or of another format
Manifest read_manifest(const std::filesystem::path& checkpoint);

/// Reads all files and the state. OUTPUT/model.safetensors may stand in for a damaged copy of the
/// best weights.
/// @throws c10::ValueError  naming the file that is missing, damaged or of another format
Checkpoint read_and_verify(const std::filesystem::path& checkpoint);

}  // namespace mezzo::text::checkpoint_format
