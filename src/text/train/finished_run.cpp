#include "text/train/finished_run.h"

#include <c10/util/Exception.h>

#include <filesystem>
#include <string>

#include "text/run/run_folder.h"
#include "text/run/run_identity.h"
#include "text/setup/run_plan.h"
#include "text/setup/run_setup.h"
#include "text/train/batch_size.h"

namespace mezzo::text {
namespace {

/// In what `config` is another run than the finished one; empty: in nothing.
std::string difference_of(const PresentRun& finished, const TrainConfig& config, const RunSetup& setup) {
  const std::string difference = describe_difference(*finished.identity, identity_of(config, setup));
  return difference.empty() ? describe_difference(finished.final_evaluation, final_evaluation_of(config, setup))
                            : difference;
}

}  // namespace

std::optional<int64_t> steps_of_finished_run(TrainConfig config, const Ranks& ranks) {
  const std::string found = ranks.together([&]() -> std::string {
    if (!ranks.is_main() || config.dry_run) {
      return "";
    }
    const auto present = read_present_run(config.output);
    if (!present || !present->finished) {
      return "";
    }
    if (config.restarted > 0 && !launch_id().empty() && present->launch == launch_id()) {
      return std::to_string(present->steps);
    }
    const bool has_model = std::filesystem::exists(config.output / "model.safetensors");
    if (config.resume != "auto" || config.overwrite || !has_model || !present->identity) {
      return "";
    }
    keep_chosen(config, present->identity->flags);
    const RunSetup setup = set_up_run(config);
    const std::string difference = difference_of(*present, config, setup);
    TORCH_CHECK_VALUE(difference.empty(), "--resume: ", config.output.string(), " holds another run: ", difference,
                      "; resume with the same settings and data, or start afresh in another --output");
    const auto texts = static_cast<int64_t>(setup.train.ids.size());
    const bool is_to_be_longer = plan_run(config, texts, ranks).total_steps > present->total_steps;
    return is_to_be_longer ? "" : std::to_string(present->steps);
  });
  const std::string of_main = ranks.all_gather(found).front();
  return of_main.empty() ? std::nullopt : std::optional<int64_t>(std::stoll(of_main));
}

}  // namespace mezzo::text
