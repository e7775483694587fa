#include "text/train/dry_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <optional>
#include <vector>

#include "mezzo/text/inference/inference.h"
#include "mezzo/text/io/standard_output.h"
#include "text/io/words.h"
#include "text/machine/machine_memory.h"
#include "text/train/memory_estimate.h"
#include "text/train/step_clock.h"

namespace mezzo::text {
namespace {

/// The steps that lie ahead, of a very long run the first.
struct PlannedWork {
  BatchShape largest;              ///< micro-batch of any rank
  int64_t largest_step = 0;        ///< where that is
  std::vector<int64_t> tokens;     ///< of each step, all ranks together, in ascending order
  std::vector<int64_t> by_tokens;  ///< the steps in that order
};

/// Times and memory of some steps, the one with the largest micro-batch among them.
struct MeasuredSteps {
  int64_t steps = 0;
  double seconds_per_step = 0;
  double seconds_per_text = 0;    ///< of evaluation; 0 without one
  int64_t peak_memory_bytes = 0;  ///< resident on the CPU, of the rank with most
};

int64_t tokens_of(const TokenizedTexts& texts, const std::vector<int64_t>& indices) {
  int64_t tokens = 0;
  for (const int64_t index : indices) {
    tokens += static_cast<int64_t>(texts.ids[index].size());
  }
  return tokens;
}

int64_t longest_of(const TokenizedTexts& texts, const std::vector<int64_t>& indices) {
  int64_t longest = 0;
  for (const int64_t index : indices) {
    longest = std::max(longest, texts.longest(index));
  }
  return longest;
}

void print_size(const char* what, int64_t bytes, const std::string& more = "") {
  write_stdout(fmt::format("{:<34}{:>9.3f} GB{}\n", what, gigabytes(bytes), more));
}

/// Seconds that the evaluations of the whole run take.
double evaluation_seconds(const RunSetup& setup, const RunPlan& plan, const MeasuredSteps& measured) {
  const auto dev = static_cast<int64_t>(setup.dev.ids.size()), test = static_cast<int64_t>(setup.test.ids.size());
  const bool last_is_extra = plan.eval_every == 0 || plan.total_steps % plan.eval_every != 0;
  const int64_t on_the_way = plan.eval_every == 0 ? 0 : plan.total_steps / plan.eval_every;
  const int64_t texts = dev * (on_the_way + (last_is_extra ? 1 : 0)) + (test > 0 ? test : dev);
  return static_cast<double>(texts) * measured.seconds_per_text;
}

/// `plan` is a copy, to be asked for the micro-batches of every rank.
PlannedWork look_ahead(const TrainConfig& config, const TokenizedTexts& texts, RunPlan plan) {
  constexpr int64_t kMostSteps = 100'000;
  const int64_t steps = std::min(plan.total_steps, kMostSteps);
  PlannedWork work;
  std::vector<int64_t> tokens(steps);
  for (plan.rank = 0; plan.rank < plan.ranks; ++plan.rank) {
    for (int64_t step = 0; step < steps; ++step) {
      for (const auto& micro : plan.micro_batches(texts, step)) {
        const int64_t rows = count_rows(texts, micro.indices, plan.batching, *config.max_length);
        if (rows > work.largest.rows) {
          work.largest = {rows, longest_of(texts, micro.indices)};
          work.largest_step = step;
        }
        tokens[step] += micro.is_stand_in ? 0 : tokens_of(texts, micro.indices);
      }
    }
  }
  work.by_tokens.resize(steps);
  std::iota(work.by_tokens.begin(), work.by_tokens.end(), 0);
  std::stable_sort(work.by_tokens.begin(), work.by_tokens.end(),
                   [&](int64_t a, int64_t b) { return tokens[a] < tokens[b]; });
  for (const int64_t step : work.by_tokens) {
    work.tokens.push_back(tokens[step]);
  }
  return work;
}

/// Of `count` steps or more, the `n`-th to measure, counted from 1: middle, quarters, eighths, so that the mean of the
/// first few stands for all.
int64_t nth_sample(int64_t n, int64_t count) {
  double place = 0, part = 0.5;  // van der Corput's sequence: the bits of n behind the point, backwards
  for (; n > 0; n /= 2, part /= 2) {
    place += part * static_cast<double>(n % 2);
  }
  return static_cast<int64_t>(place * static_cast<double>(count));
}

/// Up to `most` of the texts, evenly spread, without targets.
TokenizedTexts sample_texts(const TokenizedTexts& texts, int64_t most) {
  TokenizedTexts sample;
  const auto count = static_cast<int64_t>(texts.ids.size()), taken = std::min(count, most);
  for (int64_t i = 0; i < taken; ++i) {
    const int64_t text = i * count / taken;
    sample.ids.push_back(texts.ids[text]);
    if (!texts.token_types.empty()) sample.token_types.push_back(texts.token_types[text]);
    if (!texts.window_lengths.empty()) sample.window_lengths.push_back(texts.window_lengths[text]);
  }
  return sample;
}

/// Takes steps of the run, then evaluates a few texts. The first step is the one that needs the most memory, which also
/// pays for what first steps set up. Collective.
MeasuredSteps try_steps(const RunSetup& setup,
                        const Ranks& ranks,
                        const PlannedWork& work,
                        const std::function<bool(int64_t step)>& try_step) {
  constexpr int64_t kMostSteps = 15, kMostTexts = 256;
  constexpr double kMostSeconds = 10;
  MeasuredSteps measured;
  bool stop = try_step(work.largest_step);
  const auto begin = Clock::now();
  while (!stop && measured.steps < kMostSteps) {
    const int64_t sample = nth_sample(++measured.steps, static_cast<int64_t>(work.by_tokens.size()));
    stop = try_step(work.by_tokens[sample]) || ranks.any(seconds_since(begin) > kMostSeconds);
  }
  measured.seconds_per_step = seconds_since(begin) / static_cast<double>(std::max<int64_t>(measured.steps, 1));
  if (const auto texts = sample_texts(setup.dev.ids.empty() ? setup.test : setup.dev, kMostTexts); !texts.ids.empty()) {
    const auto evaluation_begin = Clock::now();
    predict_outputs(*setup.model, texts, setup.precision, {}, {.rank = ranks.rank(), .of = ranks.size()});
    measured.seconds_per_text = seconds_since(evaluation_begin) / static_cast<double>(texts.ids.size());
  }
  for (const std::string& peak : ranks.all_gather(std::to_string(peak_memory_bytes()))) {
    measured.peak_memory_bytes = std::max<int64_t>(measured.peak_memory_bytes, std::stoll(peak));
  }
  if (!setup.dev.ids.empty()) {  // in the end the best weights are read again, a tensor at a time
    measured.peak_memory_bytes += largest_parameter_bytes(*setup.model);
  }
  return measured;
}

/// Prints on stdout the steps of a run, its memory on each rank next to the machine's memory, and the time.
/// @param memory  as it was before the first step
/// @param measured  nullopt if no step could be tried
void print(const TrainingRun& run,
           const PlannedWork& work,
           const MemoryEstimate& estimate,
           const MachineMemory& memory,
           const std::optional<MeasuredSteps>& measured) {
  const TrainConfig& config = run.config;
  const RunSetup& setup = run.setup;
  const RunPlan& plan = run.plan;
  for (const std::string& note : setup.notes) {
    if (!config.quiet) {
      std::fputs((note + '\n').c_str(), stderr);
    }
  }
  write_stdout(fmt::format(
      "{} of {} in {} on {} in {}\n", counted(plan.total_steps, "step"),
      counted(plan.batch_size * plan.grad_accumulation, "text"),
      counted(plan.grad_accumulation * ((plan.shares + plan.ranks - 1) / plan.ranks), "micro-batch", "micro-batches"),
      counted(plan.ranks, "rank"), to_string(setup.precision)));
  const auto looked_at = static_cast<int64_t>(work.tokens.size());
  write_stdout(fmt::format("tokens a step{}: minimum {}, median {}, maximum {}\n\n",
                           looked_at < plan.total_steps ? fmt::format(", of the first {}", looked_at) : "",
                           work.tokens.front(), work.tokens[looked_at / 2], work.tokens.back()));
  write_stdout(fmt::format("memory{}\n", plan.ranks > 1 ? " of each rank" : ""));
  print_size("weights", estimate.weights);
  print_size("optimizer state", estimate.optimizer);
  print_size("gradients", estimate.gradients);
  print_size("activations of the largest batch", estimate.activations,
             fmt::format("  {} rows, the longest text {} tokens", work.largest.rows, work.largest.longest));
  if (measured && setup.device.is_cpu()) {
    print_size("the whole program at most", measured->peak_memory_bytes,
               fmt::format("  measured in {}, the largest batch among them", counted(measured->steps, "step")));
  } else {
    print_size("most at one time", estimate.total, "  estimated");
  }
  if (estimate.checkpoint > 0) {
    print_size("more while a checkpoint is written", estimate.checkpoint,
               plan.ranks > 1          ? "  of the first rank's host"
               : setup.device.is_cpu() ? ""
                                       : "  of the host's memory");
  }
  print_size("available", memory.available,
             fmt::format("  by {}, which has {:.3f} GB", memory.source, gigabytes(memory.total)));
  if (!measured) {
    write_stdout("\ntime: unknown, because no step was tried; there may be too little memory\n");
    return;
  }
  const double steps = static_cast<double>(plan.total_steps) * measured->seconds_per_step;
  const double evaluations = evaluation_seconds(setup, plan, *measured);
  write_stdout(fmt::format("\ntime: about {}, {} of it for evaluations, by {} of {} each\n",
                           duration_in_words(steps + evaluations),
                           evaluations > 0 ? duration_in_words(evaluations) : "nothing",
                           counted(measured->steps, "step"), duration_in_words(measured->seconds_per_step)));
}

}  // namespace

bool dry_run(TrainingRun& run,
             const std::function<void()>& prepare,
             const std::function<bool(int64_t step)>& try_step) {
  const RunSetup& setup = run.setup;
  const PlannedWork work = look_ahead(run.config, setup.train, run.plan);
  const auto estimate = estimate_memory(*setup.model, setup.precision, run.config, run.plan.ranks, work.largest);
  MachineMemory memory = machine_memory(setup.device);
  // No step is tried if there may be too little memory. The weights are there already.
  const bool may_fit = estimate.total - estimate.weights < memory.available;
  if (setup.device.is_cpu()) {
    memory.available += resident_memory_bytes();  // as of a run at its start
  }
  std::optional<MeasuredSteps> measured;
  if (!run.ranks.any(!may_fit)) {
    prepare();
    measured = try_steps(setup, run.ranks, work, try_step);
  }
  const bool stopped = run.ranks.any(run.stop_requested());
  if (run.ranks.is_main() && !stopped) {
    print(run, work, estimate, memory, measured);
  }
  return !stopped;
}

}  // namespace mezzo::text
