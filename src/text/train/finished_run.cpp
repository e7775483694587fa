#include "text/train/finished_run.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>

#include "mezzo/text/io/safetensors.h"
#include "text/io/json.h"
#include "text/io/words.h"
#include "text/train/batch_size.h"
#include "text/train/run_folder.h"
#include "text/train/run_identity.h"
#include "text/train/run_plan.h"
#include "text/train/run_setup.h"

namespace mezzo::text {
namespace {

/// In what `config` is another run than the finished one; empty: in nothing.
std::string difference_of(const PresentRun& finished, const TrainConfig& config, const RunSetup& setup) {
  const std::string difference = describe_difference(*finished.identity, identity_of(config, setup));
  if (!difference.empty() || finished.final_evaluation.empty()) return difference;
  return describe_difference(finished.final_evaluation, final_evaluation_of(config, setup));
}

/// @throws c10::ValueError  if the model or the report in `output` is missing or cannot be read
void check_is_complete(const std::filesystem::path& output) {
  constexpr const char* kRemedy =
      " Restore the file, or add --overwrite. The run then starts from its last checkpoint, if it has one, and writes "
      "all files again.";
  const auto check = [&](bool is_there, const char* name) {
    TORCH_CHECK_VALUE(is_there, "--resume: ", output.string(), " holds a finished run without ", name, ".", kRemedy);
  };
  const auto has = [&](const char* name) {
    std::error_code none;
    return std::filesystem::is_regular_file(output / name, none);
  };
  for (const char* name : {kWeightsFile, "config.json", "tokenizer_config.json", "report.html"}) {
    check(has(name), name);
  }
  check(has("vocab.txt") || has("tokenizer.json"), "vocab.txt or tokenizer.json");
  try {
    const SafetensorsReader header_and_size(output / kWeightsFile);
    read_json_object(output / "config.json");
  } catch (const c10::ValueError& error) {
    const std::string why = error.what_without_backtrace();
    TORCH_CHECK_VALUE(false, "--resume: the finished run is damaged: ", why, why.ends_with('.') ? "" : ".", kRemedy);
  }
}

}  // namespace

std::optional<int64_t> steps_of_finished_run(TrainConfig config, const Ranks& ranks) {
  const std::string found = ranks.together([&]() -> std::string {
    if (!ranks.is_main() || config.output.empty()) {  // as of a dry run
      return "";
    }
    const auto present = read_present_run(config.output);
    if (!present || !present->finished) return "";
    if (config.restarted > 0 && !launch_id().empty() && present->launch == launch_id()) {
      return std::to_string(present->steps);
    }
    if (config.resume != "auto" || config.overwrite || !present->identity) return "";
    keep_chosen(config, present->identity->flags);
    const RunSetup setup = set_up_run(config, ranks);
    choose_by_steps(config, std::ssize(setup.train.ids));
    const std::string difference = difference_of(*present, config, setup);
    TORCH_CHECK_VALUE(difference.empty(), "--resume: ", config.output.string(), " holds another run: ", difference,
                      "; resume with the same settings and data, or start afresh in another --output");
    if (plan_run(config, std::ssize(setup.train.ids), ranks).total_steps > present->total_steps) return "";
    check_is_complete(config.output);
    return std::to_string(present->steps);
  });
  const std::string of_main = ranks.all_gather(found).front();
  if (of_main.empty()) return std::nullopt;
  return std::stoll(of_main);
}

void say_that_run_has_finished(const TrainConfig& config, int64_t steps) {
  const auto present = read_present_run(config.output);
  const bool ended_early = present && present->total_steps > steps;
  std::fputs(
      fmt::format("already finished after {}: model and report.html are in {}\n",
                  ended_early ? fmt::format("{} of {} steps", steps, present->total_steps) : counted(steps, "step"),
                  config.output.string())
          .c_str(),
      stderr);
}

}  // namespace mezzo::text
