#pragma once

#include "mezzo/cpp20.h"

#include <string>

namespace mezzo::text {

/// Leaves the message of a failure to whoever started this process:
/// - in the file of `TORCHELASTIC_ERROR_FILE`, as PyTorch's `torch.distributed.elastic` writes it; torchrun prints it;
/// - in Kubernetes' termination log, if that is there: /dev/termination-log, or the file of `TERMINATION_LOG`.
/// A file that cannot be written stays as it is: the message is on stderr anyway.
void record_failure(const std::string& message);

}  // namespace mezzo::text
