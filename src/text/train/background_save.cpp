#include "text/train/background_save.h"

#include <ATen/ops/empty_like.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "text/checkpoint/checkpoint_format.h"

namespace mezzo::text {
namespace {

/// Copies to the CPU, one after the other, so that memory without another owner is not held twice.
void make_own(NamedTensors& tensors) {
  for (auto& [name, tensor] : tensors) {
    auto own = at::empty_like(tensor, tensor.options().device(at::kCPU), at::MemoryFormat::Contiguous);
    own.copy_(tensor);
    tensor = std::move(own);
  }
}

/// Of this thread alone, as Linux has it.
void take_what_others_leave() {
  constexpr int kNice = 10;  // a tenth of a processor that others want, lest a run that is stopped waits long for it
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNice);  // if refused, the thread competes as others do
}

}  // namespace

void BackgroundSave::begin(Checkpoint& checkpoint, Write write) {
  for (const auto& file : checkpoint_format::kTensorFiles) make_own(checkpoint.*file.tensors);
  step_ = checkpoint.step;
  const auto own = std::make_shared<Checkpoint>(checkpoint);
  std::promise<void> has_begun;
  const auto begun = has_begun.get_future();
  written_ =
      std::async(std::launch::async, [own, write = std::move(write), has_begun = std::move(has_begun)]() mutable {
        take_what_others_leave();
        has_begun.set_value();
        return write(*own);
      });
  checkpoint = {};
  begun.wait();
}

bool BackgroundSave::is_done() const {
  return is_under_way() && written_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

BackgroundSave::Outcome BackgroundSave::finish() {
  Outcome outcome{step_, nullptr, ""};
  try {
    outcome.warning = written_.get();
  } catch (...) {
    outcome.error = std::current_exception();
  }
  return outcome;
}

}  // namespace mezzo::text
