#include "text/train/training_run.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "text/train/batch_size.h"
#include "text/train/resuming.h"
#include "text/train/run_identity.h"

namespace mezzo::text {

TrainingRun::TrainingRun(TrainConfig& given,
                         const std::function<bool()>& stop,
                         distributed::ProcessGroup* group,
                         RunKeeper::State checkpoint)
    : stop_requested(stop),
      ranks(group),
      keeper(given, ranks, std::move(checkpoint)),
      setup(ranks.together([&] { return set_up_run(given, ranks); })),
      resumed(agree_on_start(given, ranks)),
      config(with_batch_size(given, setup, ranks, flags_before(given, resumed))),
      plan(plan_run(config, std::ssize(setup.train.ids), ranks)),
      identity(identity_of(config, setup)) {
  check_same_on_all(identity, setup, ranks);
  ranks.all_or_none([&] {
    const std::string difference = resumed ? describe_difference(*resumed, identity, *setup.task) : "";
    TORCH_CHECK_VALUE(difference.empty(), "--resume: the checkpoint is of another run: ", difference,
                      "; resume with the same settings, or start afresh in another --output");
    keeper.check(resumed, identity, plan.total_steps);
    if (!config.reproduces.empty()) {
      std::ranges::move(differences_from(config.reproduces, identity, environment()), std::back_inserter(setup.notes));
    }
  });
  if (resumed) {
    TORCH_CHECK_VALUE(resumed->step <= plan.total_steps, "the checkpoint to resume from has step ", resumed->step,
                      ", but the run has only ", plan.total_steps, "; resume from another checkpoint");
    state = *resumed;
  }
}

void TrainingRun::open() {
  ranks.all_or_none([&] {
    if (const std::string run = keeper.open(config, setup, plan, identity, resumed); ranks.is_main()) {
      state.run = run;
    }
  });
  resumed.reset();
}

RunIdentity::Values TrainingRun::environment() const {
  const auto pairs = environment_of(setup);
  return {pairs.begin(), pairs.end()};
}

}  // namespace mezzo::text
