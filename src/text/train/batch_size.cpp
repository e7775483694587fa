#include "text/train/batch_size.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <optional>

#include "mezzo/text/data/batching.h"
#include "text/io/words.h"
#include "text/train/run_plan.h"

namespace mezzo::text {
namespace {

/// Memory that is left alone. One share is for memory outside of tensors: the allocator's gaps, matrix libraries'
/// buffers, the pages of files that checkpoints are written to. A little is a margin.
constexpr double kReserve = 0.1;
constexpr int64_t kLeastReserve = int64_t{256} << 20;

std::vector<int64_t> longest_first(const TokenizedTexts& texts) {
  std::vector<int64_t> order(texts.ids.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return texts.ids[a].size() > texts.ids[b].size(); });
  return order;
}

double mean_rows(const TrainConfig& config, const TokenizedTexts& texts, const std::vector<int64_t>& order) {
  const Batching batching = parse_batching(config.batching);
  if (batching == Batching::kPadded || batching == Batching::kDynamic) {
    int64_t sequences = 0, longest = 0;
    for (const int64_t text : order) {
      sequences += texts.num_windows(text);
      longest = std::max(longest, texts.longest(text));
    }
    const int64_t rows = sequences * (batching == Batching::kPadded ? *config.max_length : longest);
    return static_cast<double>(rows) / static_cast<double>(order.size());
  }
  int64_t tokens = 0;
  for (const auto& ids : texts.ids) {
    tokens += static_cast<int64_t>(ids.size());
  }
  return static_cast<double>(tokens) / static_cast<double>(texts.ids.size());
}

int64_t ranks_of_host(const Ranks& ranks) {
  return ranks.group() == nullptr ? 1 : ranks.group()->environment().local_world_size;
}

/// What an earlier life of the run says of a setting that was chosen when it began; nullopt if it does not.
std::optional<int64_t> number_of(const RunIdentity::Values& before, const char* name) {
  const auto found = before.find(name);
  if (found == before.end()) return std::nullopt;
  const std::string& text = found->second;
  int64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  TORCH_CHECK_VALUE(error == std::errc() && rest == end && number >= 1 && number <= 1'000'000,
                    "the run to resume has the ", name, " '", text,
                    "', expected a number from 1; resume from another checkpoint");
  return number;
}

/// Numbers for the batch size and the shares.
void choose_numbers(TrainConfig& config, RunSetup& setup, const Ranks& ranks, const RunIdentity::Values& before) {
  const bool is_auto = !config.batch_size, are_shares_auto = config.shares == 0;
  keep_chosen(config, before);
  if (config.shares == 0) config.shares = ranks.size();
  if (are_shares_auto && config.shares == 1) setup.automatic.emplace("shares");
  TORCH_CHECK_VALUE(config.shares <= std::max<int64_t>(std::ssize(setup.train.ids), ranks.size()), "--shares is ",
                    config.shares, ", of ", counted(std::ssize(setup.train.ids), "training text"),
                    ": some shares would be empty; pass a smaller number");
  if (config.shares != ranks.size()) {
    setup.notes.push_back(fmt::format(
        "{} of each batch on {}: {}", counted(config.shares, "share"), counted(ranks.size(), "rank"),
        config.shares < ranks.size()
            ? "ranks without a share add nothing"
            : "the same batches and dropout as on that number of ranks; sums of gradients may round differently"));
  }
  if (is_auto && config.batch_size) {
    setup.notes.push_back(fmt::format("batch size auto: {}, as before", counted(*config.batch_size, "text")));
  }
  if (config.batch_size) return;
  BatchSizeChoice mine;
  ranks.all_or_none([&] { mine = choose_batch_size(config, setup, ranks, machine_memory(setup.device)); });
  config.batch_size = mine.texts;
  for (const std::string& theirs : ranks.all_gather(std::to_string(mine.texts))) {
    config.batch_size = std::min<int64_t>(*config.batch_size, std::stoll(theirs));
  }
  setup.notes.push_back(*config.batch_size < mine.texts
                            ? fmt::format("batch size auto: {}, limited by the memory of another rank",
                                          counted(*config.batch_size, "text"))
                            : mine.reason);
}

}  // namespace

BatchSizeChoice choose_batch_size(const TrainConfig& config,
                                  const RunSetup& setup,
                                  const Ranks& ranks,
                                  const MachineMemory& memory) {
  const auto order = longest_first(setup.train);
  const int64_t longest = setup.train.longest(order.front());
  const auto estimate = [&](int64_t texts) {
    const auto worst = std::span(order).first(texts);
    const int64_t rows = count_rows(setup.train, worst, parse_batching(config.batching), *config.max_length);
    const auto needed = estimate_memory(*setup.model, setup.precision, config, ranks.size(), {rows, longest});
    return needed.total + (setup.device.is_cpu() ? needed.checkpoint / ranks_of_host(ranks) : 0);
  };
  const int64_t share = setup.device.is_cpu() ? memory.available / ranks_of_host(ranks) : memory.available;
  const auto reserve = std::max(static_cast<int64_t>(kReserve * static_cast<double>(share)), kLeastReserve);
  // The weights are there already.
  const int64_t room = share - reserve + kFloatBytes * count_parameters(*setup.model);

  const int64_t shares = config.shares > 0 ? config.shares : ranks.size();
  const double rows = mean_rows(config, setup.train, order) * static_cast<double>(shares);
  const auto cap = std::max(static_cast<int64_t>(static_cast<double>(kMaxAutoTokens) / rows), int64_t{1});
  const int64_t all = (std::ssize(order) + shares - 1) / shares;
  const int64_t most = std::min(cap, all);
  TORCH_CHECK_VALUE(
      estimate(1) <= room,
      fmt::format("--batch-size auto: training on one text of {} tokens takes about {:.2f} GB, and {} has {:.2f} GB to "
                  "spare. Pass --gradient-checkpointing, a shorter --max-length, or --save-minutes 0, which needs no "
                  "copies for checkpoints. A number in place of auto skips this check",
                  longest, gigabytes(estimate(1)), memory.source, gigabytes(room)));
  int64_t texts = 1, too_many = most + 1;
  while (too_many - texts > 1) {
    const int64_t middle = texts + (too_many - texts) / 2;
    (estimate(middle) <= room ? texts : too_many) = middle;
  }
  const char* limit = texts < most ? "limited by the memory"
                      : most < cap ? "all there are"
                                   : "larger batches are not faster";
  return {texts, fmt::format("batch size auto: {}, about {:.0f} tokens{}, {}; {} has {:.2f} GB available",
                             counted(texts, "text"), static_cast<double>(texts) * rows,
                             shares > 1 ? " with all shares" : "", limit, memory.source, gigabytes(share))};
}

void keep_chosen(TrainConfig& config, const RunIdentity::Values& before) {
  if (config.shares == 0) config.shares = number_of(before, "shares").value_or(0);
  if (!config.batch_size) config.batch_size = number_of(before, "batch-size");
}

TrainConfig with_batch_size(TrainConfig config,
                            RunSetup& setup,
                            const Ranks& ranks,
                            const RunIdentity::Values& before) {
  choose_numbers(config, setup, ranks, before);
  choose_by_steps(config, std::ssize(setup.train.ids));
  return config;
}

}  // namespace mezzo::text
