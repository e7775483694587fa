#include "mezzo/text/checkpoint.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "mezzo/text/atomic_file.h"
#include "mezzo/text/safetensors.h"
#include "text/json_file.h"
#include "text/sync_folder.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace mezzo::text {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";
constexpr const char* kWeights = "weights.safetensors";
constexpr const char* kOptimizer = "optimizer.safetensors";
constexpr const char* kState = "state.json";
constexpr const char* kManifest = "manifest.json";

std::string hash_of_file(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  TORCH_CHECK_VALUE(fd >= 0, path.string(), ": cannot be opened: ", std::strerror(errno));
  XXH3_state_t* state = XXH3_createState();
  XXH3_128bits_reset(state);
  std::vector<char> buffer(1 << 20);
  ssize_t count = 0;
  while ((count = ::read(fd, buffer.data(), buffer.size())) > 0) {
    XXH3_128bits_update(state, buffer.data(), static_cast<size_t>(count));
  }
  const XXH128_hash_t hash = XXH3_128bits_digest(state);
  XXH3_freeState(state);
  ::close(fd);
  TORCH_CHECK_VALUE(count == 0, path.string(), ": cannot be read: ", std::strerror(errno));
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

void flush(const fs::path& folder) {
  const int error = sync_folder(folder);
  TORCH_CHECK_VALUE(error == 0, folder.string(), ": cannot be flushed to the disk: ", std::strerror(error));
}

/// Checkpoints of `folder`, newest first.
std::vector<std::pair<int64_t, fs::path>> list_checkpoints(const fs::path& folder) {
  std::vector<std::pair<int64_t, fs::path>> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    const std::string digits = name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : "";
    if (!digits.empty() && digits.size() < 18 && digits.find_first_not_of("0123456789") == std::string::npos) {
      found.emplace_back(std::stoll(digits), entry.path());
    }
  }
  std::sort(found.rbegin(), found.rend());
  return found;
}

Json state_to_json(const Checkpoint& checkpoint) {
  return {{"step", checkpoint.step},
          {"steps_taken", checkpoint.steps_taken},
          {"samples", checkpoint.samples},
          {"tokens", checkpoint.tokens},
          {"seconds", checkpoint.seconds},
          {"step_seconds", checkpoint.step_seconds},
          {"last_eval_step", checkpoint.last_eval_step},
          {"best_accuracy", checkpoint.best_accuracy ? Json(*checkpoint.best_accuracy) : Json()},
          {"best_step", checkpoint.best_step},
          {"scaler", checkpoint.scaler},
          {"schedule", checkpoint.schedule},
          {"settings", checkpoint.settings}};
}

void state_from_json(const Json& json, Checkpoint& checkpoint) {
  checkpoint.step = json.at("step").get<int64_t>();
  checkpoint.steps_taken = json.at("steps_taken").get<int64_t>();
  checkpoint.samples = json.at("samples").get<int64_t>();
  checkpoint.tokens = json.at("tokens").get<int64_t>();
  checkpoint.seconds = json.at("seconds").get<double>();
  checkpoint.step_seconds = json.at("step_seconds").get<double>();
  checkpoint.last_eval_step = json.at("last_eval_step").get<int64_t>();
  if (!json.at("best_accuracy").is_null()) {
    checkpoint.best_accuracy = json.at("best_accuracy").get<double>();
  }
  checkpoint.best_step = json.at("best_step").get<int64_t>();
  checkpoint.scaler = json.at("scaler").get<std::map<std::string, double>>();
  checkpoint.schedule = json.at("schedule").get<std::map<std::string, double>>();
  checkpoint.settings = json.at("settings").get<std::map<std::string, std::string>>();
}

std::vector<std::pair<std::string, at::Tensor>> read_tensors(const fs::path& path) {
  const SafetensorsReader file(path);
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const std::string& name : file.names()) {
    tensors.emplace_back(name, file.tensor(name));
  }
  return tensors;
}

void check_manifest(const fs::path& folder) {
  const Json manifest = read_json_object(folder / kManifest);
  for (const char* name : {kWeights, kOptimizer, kState}) {
    const auto entry = manifest.find(name);
    TORCH_CHECK_VALUE(entry != manifest.end() && entry->is_string(), (folder / kManifest).string(), ": has no hash of ",
                      name);
    TORCH_CHECK_VALUE(hash_of_file(folder / name) == entry->get<std::string>(), (folder / name).string(),
                      ": is damaged: its hash is not the one noted when the checkpoint was written");
  }
}

}  // namespace

void save_checkpoint(const Checkpoint& checkpoint, const fs::path& folder, int64_t keep) {
  const fs::path target = folder / fmt::format("{}{}", kPrefix, checkpoint.step);
  const fs::path aside = folder / fmt::format(".{}{}.tmp", kPrefix, checkpoint.step);
  fs::remove_all(aside);
  fs::create_directories(aside);
  save_safetensors(aside / kWeights, checkpoint.weights);
  save_safetensors(aside / kOptimizer, checkpoint.optimizer);
  write_file_atomically(aside / kState, state_to_json(checkpoint).dump(2) + "\n");
  Json manifest;
  for (const char* name : {kWeights, kOptimizer, kState}) {
    manifest[name] = hash_of_file(aside / name);
  }
  write_file_atomically(aside / kManifest, manifest.dump(2) + "\n");
  flush(aside);

  fs::remove_all(target);  // of an earlier life of the same run
  fs::rename(aside, target);
  flush(folder);
  const auto all = list_checkpoints(folder);
  for (size_t i = static_cast<size_t>(keep); i < all.size(); ++i) {
    fs::remove_all(all[i].second);
  }
}

Checkpoint load_checkpoint(const fs::path& folder) {
  TORCH_CHECK_VALUE(fs::is_directory(folder), folder.string(), ": is not a checkpoint folder");
  check_manifest(folder);
  Checkpoint checkpoint;
  try {
    state_from_json(read_json_object(folder / kState), checkpoint);
  } catch (const Json::exception& error) {
    TORCH_CHECK_VALUE(false, (folder / kState).string(), ": is no checkpoint state: ", error.what());
  }
  checkpoint.weights = read_tensors(folder / kWeights);
  checkpoint.optimizer = read_tensors(folder / kOptimizer);
  return checkpoint;
}

std::optional<Checkpoint> load_newest_checkpoint(const fs::path& folder, std::vector<std::string>& problems) {
  for (const auto& [step, path] : list_checkpoints(folder)) {
    try {
      return load_checkpoint(path);
    } catch (const c10::Error& error) {
      problems.emplace_back(error.what_without_backtrace());
    }
  }
  return std::nullopt;
}

}  // namespace mezzo::text
