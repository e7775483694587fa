#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "graph/device_graph.h"
#include "memory/recording_scope.h"

namespace mezzo {

/// A step as it was recorded: graphs, and work of the host between them.
class RecordedStep {
 public:
  using Work = std::function<void()>;

  /// Queues it on the current stream. Waits only if the host's work does.
  void replay() const;

 private:
  friend class StepRecording;

  std::vector<std::unique_ptr<DeviceGraph>> graphs_;
  std::vector<Work> between_;  // between_[i] comes after graphs_[i]
  std::vector<Work> notes_;
};

/// Records the work that this thread gives to the current stream while it lives. Work that cannot be part of a graph,
/// such as a collective of Gloo, ends one graph. Each replay calls it, and another graph follows.
class StepRecording {
 public:
  using Work = RecordedStep::Work;
  /// Functions that each replay calls first; expired after the recording.
  using Notes = std::weak_ptr<std::vector<Work>>;

  /// @param graphs  must outlive this
  explicit StepRecording(DeviceGraphs& graphs);
  /// Drops the recorded work, unless `end` came before.
  ~StepRecording();
  StepRecording(const StepRecording&) = delete;
  StepRecording& operator=(const StepRecording&) = delete;

  /// @throws c10::Error  if something made the recording void, or a check of `check_at_end` fails
  RecordedStep end();

  /// Of this thread; null if it records nothing. A thread of autograd has none.
  static StepRecording* current();
  /// Of that; none without a recording.
  static Notes current_notes();

  /// Has each replay call `work` here, on the step's stream. The memory that it uses must stay until then. The device
  /// has done nothing of the step yet while it is recorded, so `work` is not called now.
  void call_between_graphs(Work work);
  /// Has the next call of `call_between_graphs` call `work` as well, before its own work.
  void call_before_next(Work work) { before_next_.push_back(std::move(work)); }
  /// Has `end` call `check`, which throws if the step cannot be replayed.
  void check_at_end(Work check) { checks_.push_back(std::move(check)); }

 private:
  void begin_graph();

  DeviceGraphs& graphs_;
  StepRecording* const outer_;
  const RecordingScope scope_;
  RecordedStep step_;
  std::shared_ptr<std::vector<Work>> notes_ = std::make_shared<std::vector<Work>>();
  std::vector<Work> before_next_, checks_;
};

/// For the host's work beside the device, such as counting. Calls `work` now, or at the begin of each replay of the
/// recording that `notes` belong to. From any thread.
void do_each_time(const StepRecording::Notes& notes, StepRecording::Work work);

/// Says of a call that warms up, on this thread, that the next one will do other things: it does not count.
void warm_up_once_more();
/// Whether a call has said so since the last time.
bool take_warm_up_once_more();

}  // namespace mezzo
