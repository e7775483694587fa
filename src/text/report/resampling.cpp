#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "mezzo/text/data/tokenized_texts.h"
#include "mezzo/text/report/comparison.h"
#include "text/io/printable.h"

namespace mezzo::text {
namespace {

/// As numpy.quantile, over the finite values; NaN if there are none.
double quantile(std::vector<double> values, double share) {
  std::erase_if(values, [](double value) { return !std::isfinite(value); });
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::ranges::sort(values);
  const double place = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (place - static_cast<double>(below)) * (values[above] - values[below]);
}

Interval interval(double value, const std::vector<double>& drawn) {
  return {value, quantile(drawn, 0.025), quantile(drawn, 0.975)};
}

/// Numbers of texts drawn with replacement, in turn.
class Draws {
 public:
  Draws(int64_t count, uint64_t seed) : count_(count), generator_(at::make_generator<at::CPUGeneratorImpl>(seed)) {}
  at::Tensor texts() { return at::randint(count_, {count_}, generator_, at::kLong); }
  at::Tensor coins() { return at::randint(2, {count_}, generator_, at::kLong).to(at::kBool); }

 private:
  int64_t count_;
  at::Generator generator_;
};

/// A row's coin for all numbers of the row.
at::Tensor for_rows(const at::Tensor& coins, const at::Tensor& of) {
  std::vector<int64_t> sizes(static_cast<size_t>(of.dim()), 1);
  sizes.front() = coins.size(0);
  return coins.view(sizes);
}

}  // namespace

int64_t resamples_for(const at::Tensor& outputs) {
  constexpr int64_t kNumbers = 30'000'000;  // which take some seconds to evaluate
  return std::clamp<int64_t>(kNumbers / std::max<int64_t>(outputs.numel(), 1), 200, 1000);
}

std::pair<at::Tensor, at::Tensor> of_labelled_words(const at::Tensor& outputs, const at::Tensor& targets) {
  const auto has_label = targets.ne(TokenizedTexts::kNoTarget);
  const int64_t most = has_label.sum(1).max().item<int64_t>();
  // Those that have one first, each in its place among them.
  const auto places = at::argsort(has_label.logical_not(), /*stable=*/true, /*dim=*/1).narrow(1, 0, most);
  const auto is_one = has_label.gather(1, places);
  const auto of_words = targets.gather(1, places).masked_fill(is_one.logical_not(), TokenizedTexts::kNoTarget);
  const auto numbers = places.unsqueeze(2).expand({-1, -1, outputs.size(2)});
  return {outputs.gather(1, numbers).masked_fill(is_one.logical_not().unsqueeze(2), 0), of_words};
}

TestedRuns test_models(const Task& task,
                       std::span<const at::Tensor> outputs,
                       const at::Tensor& targets,
                       int64_t resamples,
                       uint64_t seed,
                       const std::function<void(int64_t, int64_t)>& progress) {
  const int64_t num_texts = targets.size(0);
  const size_t num_models = outputs.size(), num_metrics = task.metrics().size();
  TORCH_CHECK_VALUE(num_models > 0 && num_texts > 0 && resamples > 0 &&
                        std::ranges::all_of(outputs,
                                            [&](const auto& of_model) {
                                              return of_model.size(0) == num_texts &&
                                                     of_model.sizes() == outputs.front().sizes();
                                            }),
                    "test_models: outputs of at least one model for each of ", num_texts,
                    " texts, of which there must be one, and at least one resample, got ", resamples);
  int64_t done = 0;
  const int64_t in_all = resamples * static_cast<int64_t>(3 * num_models - 2);
  const auto metrics_of = [&](const at::Tensor& of_model, const at::Tensor& of) {
    auto metrics = task.evaluate(of_model, of).metrics;
    if (progress) progress(std::min(++done, in_all), in_all);
    return metrics;
  };
  TestedRuns tested{.num_texts = num_texts, .resamples = resamples, .metrics = task.metrics()};
  std::vector<std::vector<double>> values;
  for (const at::Tensor& of_model : outputs) values.push_back(task.evaluate(of_model, targets).metrics);
  // [model][metric][resample], and of the deciding metric the differences from the first model
  std::vector<std::vector<std::vector<double>>> drawn(num_models, std::vector<std::vector<double>>(num_metrics));
  std::vector<std::vector<double>> apart(num_models);
  std::vector<int64_t> as_far(num_models, 0);
  Draws draws(num_texts, seed);
  for (int64_t resample = 0; resample < resamples; ++resample) {
    const at::Tensor texts = draws.texts(), coins = draws.coins(), of_texts = targets.index_select(0, texts);
    double of_first = 0;
    for (size_t model = 0; model < num_models; ++model) {
      const auto metrics = metrics_of(outputs[model].index_select(0, texts), of_texts);
      for (size_t metric = 0; metric < num_metrics; ++metric) drawn[model][metric].push_back(metrics[metric]);
      if (model == 0) of_first = metrics.front();
      apart[model].push_back(metrics.front() - of_first);
      if (model == 0) continue;
      const auto exchanged = for_rows(coins, outputs[model]);
      const double by_chance = metrics_of(at::where(exchanged, outputs[0], outputs[model]), targets).front() -
                               metrics_of(at::where(exchanged, outputs[model], outputs[0]), targets).front();
      const double observed = values[model].front() - values[0].front();
      as_far[model] += !(std::abs(by_chance) < std::abs(observed) - 1e-12);
    }
  }
  for (size_t model = 0; model < num_models; ++model) {
    auto& intervals = tested.intervals.emplace_back();
    for (size_t metric = 0; metric < num_metrics; ++metric) {
      intervals.push_back(interval(values[model][metric], drawn[model][metric]));
    }
    if (model > 0) {
      tested.differences.push_back({interval(values[model].front() - values[0].front(), apart[model]),
                                    static_cast<double>(1 + as_far[model]) / static_cast<double>(1 + resamples)});
    }
  }
  return tested;
}

std::string to_string(const Interval& interval) {
  return fmt::format("{} ({} to {})", fixed(interval.value, 4), fixed(interval.low, 4), fixed(interval.high, 4));
}

}  // namespace mezzo::text
