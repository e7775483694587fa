#include "mezzo/text/checkpoint/checkpoint.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <system_error>

#include "mezzo/text/io/error_message.h"
#include "mezzo/text/io/safetensors.h"
#include "text/checkpoint/checkpoint_format.h"
#include "text/io/content_hash.h"
#include "text/io/json.h"
#include "text/io/read_error.h"
#include "text/io/read_file.h"

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

/// The step that a checkpoint's folder is named for; -1 for a folder of another name.
int64_t named_step(const fs::path& folder) {
  const std::string name = folder.filename().string();
  return std::max(step_of(name, kPrefix, ""), step_of(name, fmt::format(".{}", kPrefix), kReplaced));
}

/// `.step-N SUFFIX`, or a further name if that folder holds other files.
fs::path free_name(const fs::path& folder, int64_t step, std::string_view suffix) {
  fs::path path = folder / fmt::format(".{}{}{}", kPrefix, step, suffix);
  for (int64_t attempt = 1; fs::exists(fs::symlink_status(path)) && !fs::is_empty(path); ++attempt) {
    path = folder / fmt::format(".{}{}.{}{}", kPrefix, step, attempt, suffix);
  }
  return path;
}

void check_file(const fs::path& checkpoint, const Manifest& manifest, const char* name) {
  const fs::path file = checkpoint / name;
  const auto noted = manifest.files.find(name);
  TORCH_CHECK_VALUE(noted != manifest.files.end(), (checkpoint / kManifest).string(), ": has no entry for ", name);
  std::error_code error;
  const auto bytes = fs::file_size(file, error);
  TORCH_CHECK_VALUE(error || bytes == static_cast<uintmax_t>(noted->second.bytes), file.string(),
                    ": is damaged: it has ", bytes, " bytes, and had ", noted->second.bytes,
                    " when the checkpoint was written");
  TORCH_CHECK_VALUE(hash_of_file(file) == noted->second.hash, file.string(),
                    ": is damaged: its hash is not the one noted when the checkpoint was written");
}

/// Whether the file is there, can be read, and holds that.
bool has_hash(const fs::path& file, const std::string& hash) {
  std::error_code none;
  try {
    return fs::is_regular_file(file, none) && hash_of_file(file) == hash;
  } catch (const UnreadableError&) {
    return false;
  }
}

void check_format(const fs::path& file, const Json& manifest) {
  const auto format = manifest.find("format");
  if (format == manifest.end()) {
    throw UnreadableError(
        file.string() +
        ": has no format number: an earlier mezzo wrote it; resume with that version, or start a new run");
  }
  if (*format != kCheckpointFormat) {
    throw UnreadableError(c10::str(file.string(), ": is of format ", format->dump(), ", this mezzo reads format ",
                                   kCheckpointFormat, "; resume with the version that wrote it"));
  }
}

constexpr int64_t kMostCounted = int64_t{1} << 53;  // a double counts exactly up to here

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

/// {"step": 50, "accuracy": 0.9, "loss": 0.3, "hash": "…"}: the key is the metric's name. An undefined metric is null.
Json to_json(const BestModel& best) {
  return {{"step", best.step}, {best.metric, best.value}, {"loss", best.loss}, {"hash", best.hash}};
}

BestModel best_from_json(const Json& json, const fs::path& file) {
  TORCH_CHECK_VALUE(json.size() == 4, file.string(), ": \"best\" must have a step, a loss, a hash and one metric");
  BestModel best{count_of(json, "step", kMostCounted, file), "", 0, json.at("loss").get<double>(),
                 json.at("hash").get<std::string>()};
  for (const auto& [name, value] : json.items()) {
    if (name != "step" && name != "loss" && name != "hash") {
      best.metric = name;
    }
  }
  const Json& value = json.at(best.metric);
  best.value = value.is_null() ? std::nan("") : value.get<double>();
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
  for (const auto& [key, value] : json.at("scaler").items()) {
    checkpoint.scaler[key] = value.is_number_integer() ? c10::Scalar(value.get<int64_t>()) : value.get<double>();
  }
  json.at("schedule").get_to(checkpoint.schedule);
  checkpoint.identity = identity_from_json(json.at("identity"));
}

NamedTensors read_tensors(const fs::path& path) {
  const SafetensorsReader file(path);
  NamedTensors tensors;
  for (const std::string& name : file.names()) {
    tensors.emplace_back(name, file.tensor(name));
  }
  return tensors;
}

/// Whether nothing but files of somebody else is left there. A file that cannot be looked at may be there.
bool is_of_others(const fs::path& checkpoint) {
  std::error_code ignored;
  const bool has_own = std::any_of(std::begin(kFiles), std::end(kFiles), [&](const char* name) {
    return fs::status(checkpoint / name, ignored).type() != fs::file_type::not_found;
  });
  return !has_own && !fs::is_empty(checkpoint, ignored) && !ignored;
}

/// Whether manifest.json is missing, empty or cut off. A file system on a bucket may rename a folder file by file, and
/// lose the last writes. Asks for the file, since the list of a folder's files may be an old one there.
bool is_incomplete(const fs::path& checkpoint) {
  std::error_code ignored;
  if (fs::is_symlink(checkpoint, ignored)) return false;  // to a disk that may be away
  try {
    const std::string text = read_file(checkpoint / kManifest);
    const size_t last = text.find_last_not_of(" \n");
    return last == std::string::npos || text[last] != '}';
  } catch (const c10::ValueError&) {
    return !fs::exists(checkpoint / kManifest, ignored) && !ignored;
  }
}

List list_folders(const fs::path& folder, bool incomplete) {
  List found;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const int64_t step = named_step(entry->path());
    if (step >= 0 && !is_of_others(entry->path()) && is_incomplete(entry->path()) == incomplete) {
      found.emplace_back(step, entry->path());
    }
  }
  // A link to a disk that is away for the moment hides its checkpoints: they are not missing.
  const bool is_missing = error == std::errc::no_such_file_or_directory && !fs::exists(fs::symlink_status(folder));
  TORCH_CHECK_VALUE(!error || is_missing, folder.string(), ": cannot be searched for checkpoints: ", error.message());
  std::sort(found.rbegin(), found.rend());  // "." sorts before "s"
  return found;
}

}  // namespace

List list(const fs::path& folder) { return list_folders(folder, /*incomplete=*/false); }

List list_incomplete(const fs::path& folder) { return list_folders(folder, /*incomplete=*/true); }

bool has_successor(const fs::path& checkpoint, const List& found) {
  const fs::path successor = path(checkpoint.parent_path(), named_step(checkpoint));
  return is_replaced(checkpoint) &&
         std::ranges::any_of(found, [&](const auto& other) { return other.second == successor; });
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
  Json scaler = Json::object();
  for (const auto& [key, value] : checkpoint.scaler) {
    scaler[key] = value.isFloatingPoint() ? Json(value.toDouble()) : Json(value.toLong());
  }
  const Json json = {{"run", checkpoint.run},
                     {"step", checkpoint.step},
                     {"steps_taken", checkpoint.steps_taken},
                     {"samples", checkpoint.samples},
                     {"tokens", checkpoint.tokens},
                     {"seconds", checkpoint.seconds},
                     {"step_seconds", checkpoint.step_seconds},
                     {"last_eval_step", checkpoint.last_eval_step},
                     {"best", best ? to_json(*best) : Json()},
                     {"scaler", scaler},
                     {"schedule", checkpoint.schedule},
                     {"identity", to_json(checkpoint.identity)}};
  return json.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

std::string manifest_text(const Manifest& manifest) {
  Json files = Json::object();
  for (const auto& [name, file] : manifest.files) {
    files[name] = {{"bytes", file.bytes}, {"hash", file.hash}};
  }
  const Json json = {{"format", kCheckpointFormat}, {"files", files}, {"environment", manifest.environment}};
  return json.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

Manifest read_manifest(const fs::path& checkpoint) {
  const fs::path file = checkpoint / kManifest;
  const Json json = read_json_object(file);
  check_format(file, json);
  Manifest manifest;
  try {
    for (const auto& [name, noted] : json.at("files").items()) {
      manifest.files[name] = {count_of(noted, "bytes", kMostCounted, file), noted.at("hash").get<std::string>()};
    }
    json.at("environment").get_to(manifest.environment);
  } catch (const Json::exception&) {
    TORCH_CHECK_VALUE(false, file.string(),
                      ": is not a manifest of a checkpoint; a field is missing or of another type");
  }
  return manifest;
}

/// @throws c10::ValueError  that names the newest checkpoint near `folder`
void check_is_checkpoint(const fs::path& folder, const fs::file_status& status) {
  const bool is_folder = fs::is_directory(status);
  std::error_code error;
  if (is_folder && (named_step(folder) >= 0 || fs::exists(folder / kManifest, error))) return;
  for (const fs::path& place : {folder, folder / "checkpoints", folder.parent_path()}) {
    if (!fs::is_directory(place, error)) continue;
    for (const auto& [step, path] : checkpoint_format::list(place)) {
      TORCH_CHECK_VALUE(path == folder, folder.string(), ": is not a checkpoint folder. Pass ", path.string(),
                        " or --resume auto");
    }
  }
  TORCH_CHECK_VALUE(false, folder.string(), ": is not a checkpoint folder, OUTPUT/checkpoints/step-N of a run");
}

Checkpoint read_and_verify(const fs::path& folder) {
  std::error_code reason;
  const fs::file_status status = fs::status(folder, reason);
  if (!fs::status_known(status)) fail_to_read(folder, reason.value());
  check_is_checkpoint(folder, status);
  Manifest manifest = read_manifest(folder);
  check_file(folder, manifest, kState);
  Checkpoint checkpoint;
  try {
    read_state(read_json_object(folder / kState), folder / kState, checkpoint);
  } catch (const Json::exception&) {
    TORCH_CHECK_VALUE(false, (folder / kState).string(),
                      ": is not a checkpoint state; a field is missing or of another type");
  }
  const int64_t named = named_step(folder);
  TORCH_CHECK_VALUE(named < 0 || named == checkpoint.step, folder.string(), ": is named for step ", named,
                    " and holds step ", checkpoint.step, "; rename it");
  for (const TensorFile& file : kTensorFiles) {
    if (file.is_required || manifest.files.contains(file.name)) check_file(folder, manifest, file.name);
  }
  const char* best = manifest.files.contains(kBest) ? kBest : kWeights;
  const std::string hash_of_best = manifest.files.at(best).hash;
  if (checkpoint.best) {
    TORCH_CHECK_VALUE(hash_of_best == checkpoint.best->hash, folder.string(), ": lacks ", kBest,
                      ", the best weights, of step ", checkpoint.best->step);
    checkpoint.best_weights = folder / best;
  }
  if (best == kBest && !has_hash(folder / kBest, hash_of_best)) {
    // The run's own file holds the same, as long as no better model was found.
    const fs::path model = folder / ".." / ".." / kWeightsFile;
    if (!checkpoint.best || !has_hash(model, checkpoint.best->hash)) {
      check_file(folder, manifest, kBest);
    }
    checkpoint.best_weights = model;
  }
  checkpoint.environment = std::move(manifest.environment);
  return checkpoint;
}

}  // namespace checkpoint_format

Checkpoint load_checkpoint(const std::filesystem::path& folder) {
  Checkpoint checkpoint = checkpoint_format::read_and_verify(folder);
  const auto files = checkpoint_format::read_manifest(folder).files;
  for (const auto& file : checkpoint_format::kTensorFiles) {
    if (files.contains(file.name)) checkpoint.*file.tensors = checkpoint_format::read_tensors(folder / file.name);
  }
  return checkpoint;
}

std::optional<Checkpoint> load_newest_checkpoint(const std::filesystem::path& folder,
                                                 std::vector<std::string>& problems) {
  const auto found = checkpoint_format::list(folder);
  for (const auto& [step, path] : found) {
    try {
      return load_checkpoint(path);
    } catch (const UnreadableError& error) {
      const bool is_last = path == found.back().second;
      const std::string advice =
          is_last ? "" : fmt::format("; to resume from an earlier checkpoint, move {} away", path.string());
      const std::string newer = problems.empty() ? "" : fmt::format("; newer than it: {}", fmt::join(problems, "; "));
      TORCH_CHECK_VALUE(false, clause_of(error), "; it may be intact, so nothing was changed", advice, newer);
    } catch (const c10::ValueError& error) {
      problems.push_back(clause_of(error));
    }
  }
  return std::nullopt;
}

}  // namespace mezzo::text
