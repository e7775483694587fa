#include "text/dry_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "text/machine_memory.h"
#include "text/memory_estimate.h"

namespace mezzo::text {
namespace {

struct PlannedWork {
  BatchShape largest;           // micro-batch of any rank
  std::vector<int64_t> tokens;  // of each step, all ranks together, sorted
};

int64_t tokens_of(const TokenizedTexts& texts, const std::vector<int64_t>& indices) {
  int64_t tokens = 0;
  for (const int64_t index : indices) {
    tokens += static_cast<int64_t>(texts.ids[index].size());
  }
  return tokens;
}

int64_t longest_of(const TokenizedTexts& texts, const std::vector<int64_t>& indices) {
  size_t longest = 0;
  for (const int64_t index : indices) {
    longest = std::max(longest, texts.ids[index].size());
  }
  return static_cast<int64_t>(longest);
}

PlannedWork look_ahead(const TrainConfig& config, const TokenizedTexts& texts, RunPlan plan) {
  PlannedWork work;
  work.tokens.resize(plan.total_steps);
  for (plan.rank = 0; plan.rank < plan.ranks; ++plan.rank) {
    for (int64_t step = 0; step < plan.total_steps; ++step) {
      for (const auto& micro : plan.micro_batches(texts, step)) {
        const int64_t rows = count_rows(texts, micro.indices, plan.batching, config.max_length);
        if (rows > work.largest.rows) {
          work.largest = {rows, longest_of(texts, micro.indices)};
        }
        work.tokens[step] += micro.is_stand_in ? 0 : tokens_of(texts, micro.indices);
      }
    }
  }
  std::sort(work.tokens.begin(), work.tokens.end());
  return work;
}

void print_size(const char* what, int64_t bytes, const std::string& more = "") {
  fmt::print("{:<34}{:>9.3f} GB{}\n", what, static_cast<double>(bytes) / 1e9, more);
}

}  // namespace

void print_dry_run(const TrainConfig& config, const RunSetup& setup, const RunPlan& plan) {
  for (const std::string& note : setup.notes) {
    if (!config.quiet) {
      std::fputs((note + '\n').c_str(), stderr);
    }
  }
  const PlannedWork work = look_ahead(config, setup.train, plan);
  const auto estimate = estimate_memory(setup.model->config(), setup.precision, config, plan.ranks, work.largest);
  const MachineMemory memory = machine_memory(setup.device);
  fmt::print("{} steps of {} texts in {} micro-batches on {} {} in {}\n", plan.total_steps,
             plan.batch_size * plan.grad_accumulation, plan.grad_accumulation, plan.ranks,
             plan.ranks == 1 ? "rank" : "ranks", to_string(setup.precision));
  fmt::print("tokens a step: {} at least, {} in the middle, {} at most\n\n", work.tokens.front(),
             work.tokens[work.tokens.size() / 2], work.tokens.back());
  fmt::print("estimated memory{}\n", plan.ranks > 1 ? " of each rank" : "");
  print_size("weights", estimate.weights);
  print_size("optimizer state", estimate.optimizer);
  print_size("gradients", estimate.gradients);
  print_size("activations of the largest batch", estimate.activations,
             fmt::format("  {} rows, the longest text {} tokens", work.largest.rows, work.largest.longest));
  print_size("most at one time", estimate.total);
  print_size("available", memory.available,
             fmt::format("  by {}, which has {:.3f} GB", memory.source, static_cast<double>(memory.total) / 1e9));
}

}  // namespace mezzo::text
