#include "text/run/resuming.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "text/checkpoint/checkpoint_format.h"
#include "text/io/content_hash.h"
#include "text/run/recorded_run.h"

namespace mezzo::text {
namespace {

/// @param warns  of damaged ones that are passed over: one of the ranks.
std::optional<Checkpoint> find_checkpoint(const TrainConfig& config, bool warns) {
  if (config.resume.empty()) {
    return std::nullopt;
  }
  const std::filesystem::path checkpoints = config.output / "checkpoints";
  if (config.resume != "auto") {
    return load_checkpoint(config.resume);
  }
  std::vector<std::string> problems;
  auto checkpoint = load_newest_checkpoint(checkpoints, problems);
  TORCH_CHECK_VALUE(checkpoint || problems.empty(), "--resume auto: no checkpoint in ", checkpoints.string(),
                    " is intact: ", fmt::format("{}", fmt::join(problems, "; ")),
                    "; nothing was changed: restore a copy, or start anew in another --output");
  for (const std::string& problem : problems) {
    if (warns) {
      TORCH_WARN("checkpoint passed over: ", problem);
    }
  }
  return checkpoint;
}

/// Two hosts may each see another run's checkpoint, of the same step.
std::string name_of(const std::optional<Checkpoint>& checkpoint) {
  if (!checkpoint) {
    return "none";
  }
  ContentHash state;
  const std::string text = checkpoint_format::state_text(*checkpoint);
  state.update(text.data(), text.size());
  return fmt::format("step {} of run {} (state {:.8})", checkpoint->step, checkpoint->run, state.hex());
}

}  // namespace

std::optional<Checkpoint> agree_on_start(const TrainConfig& config, const Ranks& ranks) {
  auto checkpoint = ranks.together([&] { return find_checkpoint(config, ranks.is_main()); });
  // First, for what follows from another checkpoint differs too.
  ranks.check_same({{"the checkpoint to resume from, which all hosts must see,", name_of(checkpoint)}});
  std::map<std::string, std::string> start = {{"dry-run", config.dry_run ? "true" : "false"}};
  const RunIdentity::Values before = flags_before(config, checkpoint);
  for (const char* chosen : {"shares", "batch-size"}) {
    start.emplace(fmt::format("the {} of the run that goes on, which all hosts must see,", chosen),
                  before.contains(chosen) ? before.at(chosen) : "none");
  }
  for (const auto& [name, value] : config.settings()) {
    if (name == "batch-size" || name == "diagnose" || name == "eval-every" || name == "save-every" ||
        name == "shares" || name == "epochs" || name == "max-steps" || name == "patience" || name == "pause-at") {
      start.emplace(name, value);
    }
  }
  ranks.check_same(start);
  return checkpoint;
}

RunIdentity::Values flags_before(const TrainConfig& config, const std::optional<Checkpoint>& checkpoint) {
  if (checkpoint) return checkpoint->identity.flags;
  const bool goes_on = config.resume == "auto" && !config.overwrite;
  return goes_on ? recorded_flags(config.output / "run.json") : RunIdentity::Values();
}

}  // namespace mezzo::text
