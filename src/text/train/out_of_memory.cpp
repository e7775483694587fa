#include "text/train/out_of_memory.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "text/train/recorded_steps.h"
#include "text/words/words.h"

namespace mezzo::text {

std::string describe_out_of_memory(const TrainConfig& config,
                                   int64_t step,
                                   const c10::Device& device,
                                   int ranks,
                                   int64_t longest_text) {
  std::vector<std::string> remedies;
  if (config.batch_size.value() > 1) {
    remedies.push_back(fmt::format("a --batch-size below {}, with --grad-accumulation above {} for the same updates",
                                   *config.batch_size, config.grad_accumulation));
  }
  if (!config.gradient_checkpointing) {
    remedies.emplace_back("--gradient-checkpointing");
  }
  if (!config.eager && can_record_steps(device, ranks)) {
    remedies.emplace_back("--eager, which keeps no memory for recorded steps");
  }
  remedies.emplace_back("a shorter --max-length");
  return fmt::format("step {} ran out of memory on {}, with {} at once, the longest of {}; pass {}", step, device.str(),
                     counted(*config.batch_size, "text"), counted(longest_text, "token"), fmt::join(remedies, ", or "));
}

}  // namespace mezzo::text
