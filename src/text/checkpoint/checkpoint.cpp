#include "mezzo/text/checkpoint/checkpoint.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <system_error>

#include "mezzo/text/io/safetensors.h"
#include "text/checkpoint/checkpoint_format.h"
#include "text/io/content_hash.h"
#include "text/io/json_file.h"

namespace mezzo::text {
namespace checkpoint_format {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kAside = ".tmp", kReplaced = ".replaced";

/// The step of PREFIX N SUFFIX; -1 for another name.
int64_t step_of(std::string_view name, std::string_view prefix, std::string_view suffix) {
  if (!name.starts_with(prefix) || !name.ends_with(suffix) || name.size() < prefix.size() + suffix.size()) {
    return -1;
  }
  std::string digits(name.substr(prefix.size(), name.size() - prefix.size() - suffix.size()));
  if (const size_t dot = digits.find('.'); !suffix.empty() && dot != std::string::npos) {  // a further name
    digits.resize(digits.find_first_not_of("0123456789", dot + 1) == std::string::npos ? dot : 0);
  }
  const bool is_number =
      !digits.empty() && digits.size() < 18 && digits.find_first_not_of("0123456789") == std::string::npos;
  return is_number ? std::stoll(digits) : -1;
}

/// `.step-N SUFFIX`, or a further name where that folder holds files of somebody else.
fs::path free_name(const fs::path& folder, int64_t step, std::string_view suffix) {
  fs::path path = folder / fmt::format(".{}{}{}", kPrefix, step, suffix);
  for (int64_t attempt = 1; fs::exists(fs::symlink_status(path)) && !fs::is_empty(path); ++attempt) {
    path = folder / fmt::format(".{}{}.{}{}", kPrefix, step, attempt, suffix);
  }
  return path;
}

void check_hash(const fs::path& checkpoint, const Hashes& hashes, const char* name) {
  const auto hash = hashes.find(name);
  TORCH_CHECK_VALUE(hash != hashes.end(), (checkpoint / kManifest).string(), ": has no hash of ", name);
  TORCH_CHECK_VALUE(hash_of_file(checkpoint / name) == hash->second, (checkpoint / name).string(),
                    ": is damaged: its hash is not the one noted when the checkpoint was written");
}

bool has_hash(const fs::path& file, const std::string& hash) {
  std::error_code none;
  return fs::is_regular_file(file, none) && hash_of_file(file) == hash;
}

void check_format(const fs::path& file, const Json& state) {
  const auto format = state.find("format");
  TORCH_CHECK_VALUE(format != state.end(), file.string(),
                    ": has no format number: a mezzo before the first release wrote it; start anew");
  TORCH_CHECK_VALUE(*format == kCheckpointFormat, file.string(), ": is of format ", format->dump(),
                    ", this mezzo reads format ", kCheckpointFormat, "; go on with the version that wrote it");
}

constexpr int64_t kMostCounted = int64_t{1} << 53;  // what a double counts exactly

int64_t count_of(const Json& json, const char* key, int64_t most, const fs::path& file) {
  const Json& value = json.at(key);
  const bool is_count = value.is_number_integer() && value.get<int64_t>() >= 0 && value.get<int64_t>() <= most;
  TORCH_CHECK_VALUE(is_count, file.string(), ": \"", key, "\" is ", value.dump(), ", not a count from 0 to ", most);
  return value.get<int64_t>();
}

double seconds_of(const Json& json, const char* key, const fs::path& file) {
  const Json& value = json.at(key);
  const bool is_time = value.is_number() && std::isfinite(value.get<double>()) && value.get<double>() >= 0;
  TORCH_CHECK_VALUE(is_time, file.string(), ": \"", key, "\" is ", value.dump(), ", not a time in seconds");
  return value.get<double>();
}

/// {"step": 50, "accuracy": 0.9, "hash": "…"}: the metric goes by its name.
Json to_json(const BestModel& best) { return {{"step", best.step}, {best.metric, best.value}, {"hash", best.hash}}; }

BestModel best_from_json(const Json& json, const fs::path& file) {
  TORCH_CHECK_VALUE(json.size() == 3, file.string(), ": \"best\" must have a step, a hash and one metric");
  BestModel best{count_of(json, "step", kMostCounted, file), "", 0, json.at("hash").get<std::string>()};
  for (const auto& [name, value] : json.items()) {
    if (name != "step" && name != "hash") {
      best.metric = name;
    }
  }
  best.value = json.at(best.metric).get<double>();
  return best;
}

void read_state(const Json& json, const fs::path& file, Checkpoint& checkpoint) {
  json.at("run").get_to(checkpoint.run);
  checkpoint.step = count_of(json, "step", kMostCounted, file);
  checkpoint.steps_taken = count_of(json, "steps_taken", checkpoint.step, file);
  checkpoint.samples = count_of(json, "samples", kMostCounted, file);
  checkpoint.tokens = count_of(json, "tokens", kMostCounted, file);
  checkpoint.seconds = seconds_of(json, "seconds", file);
  checkpoint.step_seconds = seconds_of(json, "step_seconds", file);
  checkpoint.last_eval_step = count_of(json, "last_eval_step", checkpoint.step, file);
  if (const Json& best = json.at("best"); !best.is_null()) {
    checkpoint.best = best_from_json(best, file);
  }
  json.at("scaler").get_to(checkpoint.scaler);
  json.at("schedule").get_to(checkpoint.schedule);
  checkpoint.identity = identity_from_json(json.at("identity"));
}

std::vector<std::pair<std::string, at::Tensor>> read_tensors(const fs::path& path) {
  const SafetensorsReader file(path);
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const std::string& name : file.names()) {
    tensors.emplace_back(name, file.tensor(name));
  }
  return tensors;
}

/// Whether nothing but files of somebody else is left there.
bool is_of_others(const fs::path& checkpoint) {
  std::error_code ignored;
  const bool has_own = std::any_of(std::begin(kFiles), std::end(kFiles),
                                   [&](const char* name) { return fs::exists(checkpoint / name, ignored); });
  return !has_own && !fs::is_empty(checkpoint, ignored) && !ignored;
}

}  // namespace

std::vector<std::pair<int64_t, fs::path>> list(const fs::path& folder) {
  std::vector<std::pair<int64_t, fs::path>> found;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    const int64_t step = std::max(step_of(name, kPrefix, ""), step_of(name, fmt::format(".{}", kPrefix), kReplaced));
    if (step >= 0 && !is_of_others(entry->path())) {
      found.emplace_back(step, entry->path());
    }
  }
  // A link to a disk that is away for the moment is no lack of checkpoints.
  const bool is_missing = error == std::errc::no_such_file_or_directory && !fs::exists(fs::symlink_status(folder));
  TORCH_CHECK_VALUE(!error || is_missing, folder.string(), ": cannot be searched for checkpoints: ", error.message());
  std::sort(found.rbegin(), found.rend());  // "." sorts before "s"
  return found;
}

fs::path path(const fs::path& folder, int64_t step) { return folder / fmt::format("{}{}", kPrefix, step); }

fs::path path_aside(const fs::path& folder, int64_t step) { return free_name(folder, step, kAside); }

fs::path path_replaced(const fs::path& folder, int64_t step) { return free_name(folder, step, kReplaced); }

bool is_replaced(const fs::path& path) {
  return step_of(path.filename().string(), fmt::format(".{}", kPrefix), kReplaced) >= 0;
}

bool is_aside(const fs::path& path) {
  return step_of(path.filename().string(), fmt::format(".{}", kPrefix), kAside) >= 0;
}

Json to_json(const RunIdentity& identity) {
  return {{"flags", identity.flags}, {"model", identity.model}, {"data", identity.data}};
}

RunIdentity identity_from_json(const Json& json) {
  return {json.at("flags").get<RunIdentity::Values>(), json.at("model").get<RunIdentity::Values>(),
          json.at("data").get<RunIdentity::Values>()};
}

std::string state_text(const Checkpoint& checkpoint) {
  const auto& best = checkpoint.best;
  const Json json = {{"format", kCheckpointFormat},
                     {"run", checkpoint.run},
                     {"step", checkpoint.step},
                     {"steps_taken", checkpoint.steps_taken},
                     {"samples", checkpoint.samples},
                     {"tokens", checkpoint.tokens},
                     {"seconds", checkpoint.seconds},
                     {"step_seconds", checkpoint.step_seconds},
                     {"last_eval_step", checkpoint.last_eval_step},
                     {"best", best ? to_json(*best) : Json()},
                     {"scaler", checkpoint.scaler},
                     {"schedule", checkpoint.schedule},
                     {"identity", to_json(checkpoint.identity)}};
  return json.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

Hashes read_manifest(const fs::path& checkpoint) {
  const Json json = read_json_object(checkpoint / kManifest);
  Hashes hashes;
  for (const auto& [name, hash] : json.items()) {
    TORCH_CHECK_VALUE(hash.is_string(), (checkpoint / kManifest).string(), ": the hash of ", name, " is no string");
    hashes[name] = hash.get<std::string>();
  }
  return hashes;
}

Checkpoint read_and_verify(const fs::path& folder) {
  TORCH_CHECK_VALUE(fs::is_directory(folder), folder.string(), ": is not a checkpoint folder");
  const Hashes hashes = read_manifest(folder);
  check_hash(folder, hashes, kState);
  Checkpoint checkpoint;
  try {
    const Json state = read_json_object(folder / kState);
    check_format(folder / kState, state);
    read_state(state, folder / kState, checkpoint);
  } catch (const Json::exception& error) {
    TORCH_CHECK_VALUE(false, (folder / kState).string(), ": is no checkpoint state: ", error.what());
  }
  check_hash(folder, hashes, kWeights);
  check_hash(folder, hashes, kOptimizer);
  const char* best = hashes.contains(kBest) ? kBest : kWeights;
  if (checkpoint.best) {
    TORCH_CHECK_VALUE(hashes.at(best) == checkpoint.best->hash, folder.string(), ": lacks ", kBest,
                      ", the best weights, of step ", checkpoint.best->step);
    checkpoint.best_weights = folder / best;
  }
  if (best == kBest && !has_hash(folder / kBest, hashes.at(kBest))) {
    // The run's own file holds the same, as long as no better model was found.
    const fs::path model = folder / ".." / ".." / "model.safetensors";
    if (!checkpoint.best || !has_hash(model, checkpoint.best->hash)) {
      check_hash(folder, hashes, kBest);
    }
    checkpoint.best_weights = model;
  }
  return checkpoint;
}

}  // namespace checkpoint_format

Checkpoint load_checkpoint(const std::filesystem::path& folder) {
  Checkpoint checkpoint = checkpoint_format::read_and_verify(folder);
  checkpoint.weights = checkpoint_format::read_tensors(folder / checkpoint_format::kWeights);
  checkpoint.optimizer = checkpoint_format::read_tensors(folder / checkpoint_format::kOptimizer);
  return checkpoint;
}

std::optional<Checkpoint> load_newest_checkpoint(const std::filesystem::path& folder,
                                                 std::vector<std::string>& problems) {
  for (const auto& [step, path] : checkpoint_format::list(folder)) {
    try {
      return load_checkpoint(path);
    } catch (const c10::Error& error) {
      problems.emplace_back(error.what_without_backtrace());
    } catch (const std::exception& error) {  // of the file system
      problems.emplace_back(fmt::format("{}: {}", path.string(), error.what()));
    }
  }
  return std::nullopt;
}

}  // namespace mezzo::text
