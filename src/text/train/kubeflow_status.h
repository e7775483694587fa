#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace mezzo::text {

/// Posts the progress of a run to the status server of Kubeflow Trainer, at most every five seconds. A thread posts, so
/// training never waits. The server, its certificate and a token are named by KUBEFLOW_TRAINER_SERVER_URL, _CA_CERT and
/// _TOKEN.
/// @see transformers.integrations.KubeflowCallback, which posts the same fields.
class KubeflowStatus {
 public:
  /// Null if the environment names no server.
  static std::unique_ptr<KubeflowStatus> from_environment(int64_t step, int64_t total_steps);
  /// Waits two seconds at most for the status of a run that has ended.
  ~KubeflowStatus();
  KubeflowStatus(const KubeflowStatus&) = delete;
  KubeflowStatus& operator=(const KubeflowStatus&) = delete;

  /// Sets a metric, which the next post has.
  void metric(const std::string& name, double value) { metrics_[name] = value; }
  /// The run has come to this step.
  void step(int64_t step);
  /// The run has finished.
  void end();

  /// Why posting failed, the first time only; else empty.
  std::string take_problem();

 private:
  using Clock = std::chrono::steady_clock;

  KubeflowStatus(std::string url, int64_t step, int64_t total_steps);
  void post(int64_t percent, int64_t seconds_left);
  void run();
  std::string send(const std::string& status);

  const std::string url_;
  const int64_t first_step_, total_steps_;
  const Clock::time_point begin_ = Clock::now();
  std::map<std::string, double> metrics_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::string status_, problem_;  ///< the JSON to post; why the first post failed
  bool has_failed_ = false, has_ended_ = false;
  Clock::time_point gives_up_at_ = Clock::time_point::max();
  std::thread thread_;  // the last, as it uses the others
};

}  // namespace mezzo::text
