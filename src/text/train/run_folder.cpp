#include "text/train/run_folder.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <random>
#include <system_error>

#include "mezzo/text/io/atomic_file.h"
#include "mezzo/text/io/safetensors.h"
#include "text/checkpoint/checkpoint_format.h"
#include "text/checkpoint/checkpoint_store.h"
#include "text/io/durable_files.h"
#include "text/io/json.h"
#include "text/io/read_file.h"
#include "text/train/run_files.h"
#include "text/train/run_identity.h"

namespace mezzo::text {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr std::string_view kFirstRunJson = "{\n  \"finished\": false,\n  \"run\": \"";  // how a run's first one begins

std::string make_name() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

void remove_files_named(const fs::path& folder, std::string_view beginning) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (entry.path().filename().string().starts_with(beginning)) {
      fs::remove(entry.path());
    }
  }
  fs::remove(folder, ignored);
}

/// Which is of the model that was the best before. Removes a link, but not its target.
void remove_adapter(const fs::path& folder) {
  std::error_code ignored;
  if (fs::is_symlink(folder, ignored)) {
    fs::remove(folder);
    return;
  }
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    for (const char* name : {kAdapterWeightsFile, "adapter_config.json"}) {
      if (entry.path().filename() == name || is_leftover_of(name, entry)) fs::remove(entry.path());
    }
  }
  fs::remove(folder, ignored);
}

/// Whether `checkpoint` is one of the run's own folder.
bool lies_in_output(const TrainConfig& config, const fs::path& checkpoint) {
  std::error_code none;
  return fs::equivalent(checkpoint / "..", config.output / "checkpoints", none);
}

/// Whether it is an empty file, or a folder of nothing else.
bool is_blank(const fs::path& path) {
  std::error_code none;
  if (fs::is_regular_file(path, none)) return fs::file_size(path, none) == 0;
  if (!fs::is_directory(fs::symlink_status(path, none))) return false;
  const fs::directory_iterator entries(path);
  return std::all_of(begin(entries), end(entries), [](const auto& entry) { return is_blank(entry.path()); });
}

bool is_leftover(const fs::path& file) {
  bool found = is_leftover_of("run.json", file);
  for (const char* name : kRunFiles) {
    found = found || is_leftover_of(name, file);
  }
  return found;
}

}  // namespace

std::optional<PresentRun> read_present_run(const fs::path& output) {
  if (!fs::exists(output / "run.json")) {
    return std::nullopt;
  }
  try {
    const Json json = read_json_object(output / "run.json");
    json.at("environment").at("mezzo");
    PresentRun present{json.at("finished").get<bool>(),
                       json.value("total_steps", int64_t{0}),
                       json.value("steps", int64_t{0}),
                       json.value("run", ""),
                       json.value("launch", ""),
                       std::nullopt,
                       json.value("final_evaluation", RunIdentity::Values()),
                       json.value("metric", ""),
                       json.value("greater_is_better", true)};
    const auto number = [&](const std::string& name) {
      const auto value = json.find(name);
      return value == json.end() || value->is_null() ? std::nan("") : value->get<double>();
    };
    present.best = number("best_" + present.metric);
    present.best_loss = number("best_loss");
    if (json.contains("identity")) {
      present.identity = checkpoint_format::identity_from_json(json.at("identity"));
    }
    return present;
  } catch (const Json::exception&) {
    return std::nullopt;
  } catch (const c10::ValueError&) {
    return std::nullopt;
  }
}

bool has_run_json(const fs::path& output) {
  const fs::path file = output / "run.json";
  if (!fs::is_regular_file(file)) return fs::exists(fs::symlink_status(file));
  try {
    const std::string text = read_file(file);
    return !text.empty() && (!text.starts_with(kFirstRunJson) || Json::accept(text));
  } catch (const c10::ValueError&) {
    return true;
  }
}

std::string find_run_file(const fs::path& output) {
  const bool has_begun = has_run_json(output);
  std::vector<std::string> names(kRunFiles.begin(), kRunFiles.end());
  if (has_begun) names.emplace_back("run.json");
  names.insert(names.end(), {"tensorboard", "checkpoints", kAdapterFolder});
  const auto found = std::ranges::find_if(names, [&](const std::string& name) {
    return fs::exists(fs::symlink_status(output / name)) && (has_begun || !is_blank(output / name));
  });
  return found != names.end() ? *found : "";
}

RunFolder::RunFolder(const TrainConfig& config) : config_(config) {
  TORCH_CHECK_VALUE(!fs::exists(config.output) || fs::is_directory(config.output), "--output ", config.output.string(),
                    ": is a file, not a folder");
  if (fs::exists(config.output)) {
    lock_.emplace(config.output);
  }
}

void RunFolder::check(const std::optional<Checkpoint>& resumed, const RunIdentity& identity, int64_t total_steps) {
  replaces_ = begins_again_ = false;
  goes_on_ = resumed.has_value();
  checkpoint_format::list(config_.output / "checkpoints");  // that it cannot be read must not show half-way
  if (!resumed) {
    run_ = make_name();
    check_new(identity);
    return;
  }
  run_ = resumed->run;
  left_behind_.clear();
  if (config_.resume != "auto") {
    for (const auto& [step, path] : checkpoint_format::list(config_.output / "checkpoints")) {
      if (step > resumed->step) {
        left_behind_.push_back(step);
      }
    }
  }
  const auto present = read_present_run(config_.output);
  const bool is_its_own =
      present ? present->run == run_ : config_.resume == "auto" || lies_in_output(config_, config_.resume);
  const std::string foreign = find_run_file(config_.output);
  TORCH_CHECK_VALUE(
      is_its_own || foreign.empty(), "--output ", config_.output.string(), ": holds ", foreign,
      present ? ", of another run than the checkpoint of --resume" : ", but no run.json of a run of mezzo",
      "; pass the run's own folder, or a new one");
  // Of a finished run no step is taken back.
  const bool is_to_be_longer = present && total_steps > present->total_steps;
  const bool is_of_the_end = present && resumed->step >= present->steps && left_behind_.empty();
  const bool may_go_on = !present || !present->finished || (is_to_be_longer && is_of_the_end) || config_.overwrite;
  TORCH_CHECK_VALUE(may_go_on || is_of_the_end || config_.resume != "auto", "--resume: ", config_.output.string(),
                    " holds a run that finished after step ", present->steps,
                    ", and the newest checkpoint there is of step ", resumed->step,
                    ". Pass --overwrite to go back to step ", resumed->step,
                    " and replace the later steps, or another --output");
  TORCH_CHECK_VALUE(may_go_on, "--resume: ", config_.output.string(),
                    " holds the finished run of this checkpoint already. Pass more --epochs or --max-steps to extend "
                    "it, --overwrite to go back to step ",
                    resumed->step, " and replace the later steps, or another --output");
  TORCH_CHECK_VALUE(left_behind_.empty() || config_.overwrite || lies_in_output(config_, config_.resume),
                    "--resume: ", config_.output.string(), " continued from this checkpoint to step ",
                    left_behind_.front(), "; pass --resume auto to continue there, or --overwrite to go back to step ",
                    resumed->step);
}

void RunFolder::check_new(const RunIdentity& identity) {
  const std::string foreign = find_run_file(config_.output);
  if (foreign.empty()) {
    return;
  }
  const auto present = read_present_run(config_.output);
  TORCH_CHECK_VALUE(present, "--output ", config_.output.string(), ": holds ", foreign,
                    ", but no run.json of a run of mezzo; pass another folder");
  replaces_ = config_.overwrite;
  if (!replaces_ && config_.resume == "auto" && !present->finished) {
    // It ended before its first checkpoint, so that going on is beginning anew.
    const std::string difference = present->identity ? describe_difference(*present->identity, identity) : "";
    TORCH_CHECK_VALUE(difference.empty(), "--resume: ", config_.output.string(), " holds another run: ", difference,
                      "; resume with the same settings, or start afresh in another --output");
    TORCH_CHECK_VALUE(checkpoint_format::list(config_.output / "checkpoints").empty(), "--output ",
                      config_.output.string(), ": another run has just been there and left checkpoints; start again");
    begins_again_ = true;
  }
  TORCH_CHECK_VALUE(replaces_ || !present->finished || config_.resume != "auto", "--resume: ", config_.output.string(),
                    ": holds a finished run without a checkpoint, which --save-every would keep. Pass --overwrite to "
                    "repeat the run, or pass its folder as --model to start from its weights");
  TORCH_CHECK_VALUE(replaces_ || begins_again_, "--output ", config_.output.string(), ": holds ",
                    present->finished ? "a finished run" : "a run",
                    " already; pass another folder, --resume auto to continue an unfinished run, or --overwrite");
}

void RunFolder::make(const std::optional<Checkpoint>& resumed, const RunIdentity& identity, int64_t total_steps) {
  if (lock_) {
    check_is_there();
  } else {
    make_folders(config_.output);
    lock_.emplace(config_.output);
    check(resumed, identity, total_steps);  // another run may have been faster
  }
  if (replaces_) {
    invalidate_checkpoints(config_.output / "checkpoints", /*after=*/0);
  }
}

void RunFolder::check_is_there() const {
  TORCH_CHECK(is_there(), config_.output.string(), ": was removed, moved or replaced while the run was going");
}

/// Without a checkpoint, the best model and the records are all there is of maybe days of training. If a process is
/// killed meanwhile, part of them are in the folder aside, and the next start goes on.
void RunFolder::keep_records() {
  std::error_code none;
  const fs::path metrics = config_.output / "metrics.jsonl", model = config_.output / kWeightsFile;
  const fs::path aside = config_.output / ".before-restart";
  const uintmax_t size = fs::file_size(metrics, none);
  const bool has_records = fs::exists(model) || (!none && size > 0);
  if (!fs::exists(aside) && !(begins_again_ && has_records)) {
    return;
  }
  make_folders(aside);
  const auto keep = [&](const char* name) {
    if (fs::exists(config_.output / name)) {
      fs::rename(config_.output / name, aside / name);
    }
  };
  if (begins_again_) {
    std::for_each(kRunFiles.begin(), kRunFiles.end(), keep);
    keep("tensorboard");
    keep(kAdapterFolder);
  }
  int64_t number = 1;
  do {
    kept_ = config_.output / fmt::format("before-restart-{}", number++);
  } while (fs::exists(fs::symlink_status(kept_)));
  fs::rename(aside, kept_);
}

void RunFolder::clear() {
  keep_records();
  if (replaces_) {
    for (const char* name : kRunFiles) {
      fs::remove(config_.output / name);
    }
    remove_files_named(config_.output / "tensorboard", "events.out.tfevents.");
    remove_checkpoints(config_.output / "checkpoints");
  }
  if (!left_behind_.empty()) {  // before the records of those steps go
    invalidate_checkpoints(config_.output / "checkpoints", left_behind_.back() - 1);
  }
  if (replaces_ || (goes_on_ && config_.lora > 0)) {
    remove_adapter(config_.output / kAdapterFolder);
  }
  for (const auto& entry : fs::directory_iterator(config_.output)) {
    if (is_leftover(entry.path())) {
      fs::remove(entry.path());
    }
  }
  CheckpointStore(config_.output / "checkpoints", config_.keep).tidy();
}

std::string launch_id() {
  const char* id = std::getenv("MEZZO_LAUNCH_ID");
  return id != nullptr ? id : "";
}

TrainConfig restarted(TrainConfig config, const Ranks& ranks) {
  if (config.restarted == 0) {
    return config;
  }
  enum Found { kNothing, kRunOfOthers, kOwnRun, kOwnCheckpoint };
  const std::string found = ranks.together([&] {
    const auto present = read_present_run(config.output);
    const bool is_own = present && !launch_id().empty() && present->launch == launch_id();
    const bool has_saved = !checkpoint_format::list(config.output / "checkpoints").empty();
    return std::to_string(is_own && has_saved ? kOwnCheckpoint : is_own ? kOwnRun : present ? kRunOfOthers : kNothing);
  });
  const auto of_main = static_cast<Found>(std::stoi(ranks.all_gather(found).front()));
  if (of_main >= kOwnRun) {
    config.overwrite = false;
    config.resume = of_main == kOwnCheckpoint || config.resume.empty() ? "auto" : config.resume;
    return config;
  }
  const bool begins = config.resume.empty() || (config.resume == "auto" && (config.overwrite || of_main == kNothing));
  if (config.shares == 0 && begins) {
    config.shares = config.restarted;
  }
  return config;
}

}  // namespace mezzo::text
