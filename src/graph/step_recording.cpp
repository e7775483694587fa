#include "graph/step_recording.h"

#include <c10/util/Exception.h>

#include <utility>

namespace mezzo {
namespace {

thread_local StepRecording* of_thread = nullptr;
thread_local bool warms_up_once_more = false;

}  // namespace

void RecordedStep::replay() const {
  for (const Work& note : notes_) {
    note();
  }
  for (size_t i = 0; i < graphs_.size(); ++i) {
    graphs_[i]->replay();
    if (i < between_.size()) {
      between_[i]();
    }
  }
}

StepRecording::StepRecording(DeviceGraphs& graphs) : graphs_(graphs), outer_(std::exchange(of_thread, this)) {
  try {
    begin_graph();
  } catch (...) {
    of_thread = outer_;
    throw;
  }
}

StepRecording::~StepRecording() { of_thread = outer_; }

void StepRecording::begin_graph() {
  step_.graphs_.push_back(graphs_.new_graph(/*goes_on=*/!step_.graphs_.empty()));
  step_.graphs_.back()->begin();
}

void StepRecording::call_between_graphs(Work work) {
  step_.graphs_.back()->end();
  before_next_.push_back(std::move(work));
  step_.between_.push_back([all = std::exchange(before_next_, {})] {
    for (const Work& each : all) {
      each();
    }
  });
  begin_graph();
}

RecordedStep StepRecording::end() {
  for (const Work& check : checks_) {
    check();
  }
  step_.graphs_.back()->end();
  step_.notes_ = *std::exchange(notes_, nullptr);
  return std::move(step_);
}

StepRecording* StepRecording::current() { return of_thread; }

StepRecording::Notes StepRecording::current_notes() { return of_thread != nullptr ? of_thread->notes_ : nullptr; }

void do_each_time(const StepRecording::Notes& notes, StepRecording::Work work) {
  if (const auto recorded = notes.lock()) {
    recorded->push_back(std::move(work));
  } else {
    work();
  }
}

void warm_up_once_more() { warms_up_once_more = true; }

bool take_warm_up_once_more() { return std::exchange(warms_up_once_more, false); }

}  // namespace mezzo
