#include "text/train/kubeflow_status.h"

#include <c10/util/Exception.h>
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>

#include "mezzo/text/io/error_message.h"
#include "text/hub/post_json.h"
#include "text/io/read_file.h"

namespace mezzo::text {
namespace {

using namespace std::chrono_literals;
using Json = nlohmann::ordered_json;

constexpr const char* kUrl = "KUBEFLOW_TRAINER_SERVER_URL";
constexpr const char* kToken = "KUBEFLOW_TRAINER_SERVER_TOKEN";
constexpr auto kInterval = 5s;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

/// The file is read each time: Kubernetes renews the token.
std::string read_token() {
  const std::string file = variable(kToken);
  TORCH_CHECK(!file.empty(), kToken, " names no file");
  std::string token = read_file(file, /*max_bytes=*/1 << 16);
  token.erase(token.find_last_not_of(" \r\n") + 1);
  return token;
}

}  // namespace

std::unique_ptr<KubeflowStatus> KubeflowStatus::from_environment(int64_t step, int64_t total_steps) {
  std::string url = variable(kUrl);
  if (url.empty()) return nullptr;
  return std::unique_ptr<KubeflowStatus>(new KubeflowStatus(std::move(url), step, total_steps));
}

KubeflowStatus::KubeflowStatus(std::string url, int64_t step, int64_t total_steps)
    : url_(std::move(url)), first_step_(step), total_steps_(total_steps), thread_([this] { run(); }) {
  metric("total_steps", static_cast<double>(total_steps));
  this->step(step);
}

KubeflowStatus::~KubeflowStatus() {
  {
    const std::lock_guard lock(mutex_);
    gives_up_at_ = has_ended_ ? Clock::now() + 2s : Clock::now();
    if (!has_ended_) status_.clear();
  }
  changed_.notify_all();
  thread_.join();
}

void KubeflowStatus::step(int64_t step) {
  metric("step", static_cast<double>(step));
  const std::chrono::duration<double> past = Clock::now() - begin_;
  const double left = static_cast<double>(total_steps_ - step);
  const int64_t seconds =
      step > first_step_ ? static_cast<int64_t>(past.count() / static_cast<double>(step - first_step_) * left) : -1;
  post(std::min<int64_t>(100 * step / std::max<int64_t>(total_steps_, 1), 99), seconds);  // 100 says that all is done
}

void KubeflowStatus::end() {
  {
    const std::lock_guard lock(mutex_);
    has_ended_ = true;
  }
  post(100, 0);
}

void KubeflowStatus::post(int64_t percent, int64_t seconds_left) {
  Json metrics = Json::array();
  for (const auto& [name, value] : metrics_)
    metrics.push_back({{"name", name}, {"value", fmt::format("{:.6g}", value)}});
  Json status = {{"lastUpdatedTime", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)))},
                 {"progressPercentage", percent},
                 {"metrics", metrics}};
  if (seconds_left >= 0) status["estimatedRemainingSeconds"] = seconds_left;
  {
    const std::lock_guard lock(mutex_);
    status_ = Json{{"trainerStatus", status}}.dump();
  }
  changed_.notify_all();
}

std::string KubeflowStatus::take_problem() {
  const std::lock_guard lock(mutex_);
  return std::exchange(problem_, "");
}

void KubeflowStatus::run() {
  std::unique_lock lock(mutex_);
  const auto is_closing = [&] { return gives_up_at_ != Clock::time_point::max(); };
  for (;;) {
    changed_.wait(lock, [&] { return !status_.empty() || is_closing(); });
    if (status_.empty()) return;
    const std::string status = std::exchange(status_, "");
    lock.unlock();
    const std::string problem = send(status);
    lock.lock();
    if (!problem.empty() && !std::exchange(has_failed_, true)) {
      problem_ = fmt::format("the progress could not be posted to {} ({}): {}; training goes on", url_, kUrl, problem);
    }
    changed_.wait_for(lock, kInterval, [&] { return is_closing() || has_ended_; });
  }
}

/// Returns why it failed.
std::string KubeflowStatus::send(const std::string& status) {
  try {
    return post_json({url_, read_token(), variable("KUBEFLOW_TRAINER_SERVER_CA_CERT")}, status, [this] {
      const std::lock_guard lock(mutex_);
      return Clock::now() >= gives_up_at_;
    });
  } catch (const std::exception& error) {
    return clause_of(error);
  }
}

}  // namespace mezzo::text
