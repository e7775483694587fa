#include "text/launch/node_agreement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace mezzo::text {
namespace {

std::chrono::duration<double> seconds(double count) { return std::chrono::duration<double>(count); }

}  // namespace

NodeAgreement::NodeAgreement(const LaunchOptions& options, Time now) : options_(options), begin_(now), now_(now) {}

const NodePlan& NodeAgreement::decide(const std::map<int64_t, NodeReport>& reports, Time now) {
  now_ = now;
  for (const auto& [node, report] : reports) {
    const auto [seen, is_new] = seen_.try_emplace(node, Seen{report.beat, now});
    if (!is_new && seen->second.beat != report.beat) seen->second = {report.beat, now};
  }
  if (plan_.is_over) return plan_;
  const bool is_running = plan_.start >= 0 && !plan_.failure;
  if (is_running) plan_.failure = find_failure(reports);
  if (const auto& own = reports.at(0); own.left && (*own.left != 0 || plan_.failure)) {
    end(plan_.failure.value_or(NodeFailure{plan_.start, *own.left, true, "node 0 has ended"}));
  } else if (plan_.failure && (plan_.failure->is_final || plan_.start == options_.max_restarts())) {
    plan_.is_over = true;
  } else if (is_running && !plan_.failure) {
    plan_.is_over =
        std::ranges::all_of(plan_.nodes, [&](int64_t node) { return reports.at(node).succeeded == plan_.start; });
  } else {
    choose_nodes(reports);
  }
  return plan_;
}

bool NodeAgreement::answers(int64_t node) const {
  const auto seen = seen_.find(node);
  return seen != seen_.end() && now_ - seen->second.at < seconds(options_.node_timeout_seconds());
}

std::optional<NodeFailure> NodeAgreement::find_failure(const std::map<int64_t, NodeReport>& reports) const {
  for (const auto& [node, report] : reports) {
    if (report.failure && report.failure->start == plan_.start) {
      NodeFailure failure = *report.failure;
      failure.message = fmt::format("node {}: {}", node, failure.message);
      return failure;
    }
  }
  for (const int64_t node : plan_.nodes) {
    const auto& report = reports.at(node);
    if (report.succeeded == plan_.start) continue;
    if (report.left && *report.left != 0) {
      return NodeFailure{plan_.start, *report.left, false, fmt::format("node {} has ended", node)};
    }
    if (report.ready > plan_.start) {  // a new launcher of that node, for example
      return NodeFailure{plan_.start, 1, false, fmt::format("the ranks of node {} have ended", node)};
    }
    if (!report.left && !answers(node)) {
      return NodeFailure{plan_.start, 1, false,
                         fmt::format("node {} has not answered for {:g} s", node, options_.node_timeout_seconds())};
    }
  }
  return std::nullopt;
}

void NodeAgreement::choose_nodes(const std::map<int64_t, NodeReport>& reports) {
  std::vector<int64_t> nodes;
  for (const auto& [node, report] : reports) {
    if (report.left || !answers(node)) continue;
    if (report.ready <= plan_.start) return;  // its ranks have not ended yet
    nodes.push_back(node);
  }
  const auto count = static_cast<int64_t>(nodes.size());
  if (plan_.start < 0 && count < options_.nnodes() && now_ - begin_ < seconds(options_.join_seconds())) return;
  const int64_t least = options_.min_nnodes() > 0 ? options_.min_nnodes() : options_.nnodes();
  if (count < least) {
    const std::string why =
        plan_.failure ? plan_.failure->message + "; " : fmt::format("waited {:g} s; ", options_.join_seconds());
    end({plan_.start, plan_.failure ? plan_.failure->status : 1, true,
         fmt::format("{}{} of {} nodes are here, at least {} are needed", why, count, options_.nnodes(), least)});
    return;
  }
  plan_ = {plan_.start + 1, std::move(nodes), std::nullopt, false};
}

void NodeAgreement::end(const NodeFailure& failure) {
  plan_.failure = failure;
  plan_.is_over = true;
}

bool NodeAgreement::others_are_here(const std::map<int64_t, NodeReport>& reports) const {
  return std::ranges::any_of(reports, [&](const auto& one) {
    const auto& [node, report] = one;
    return node != 0 && !report.left && answers(node);
  });
}

}  // namespace mezzo::text
