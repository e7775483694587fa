#pragma once

#include "mezzo/cpp20.h"

#include <string>

namespace mezzo::text {

/// Passes the message of a failure to the process that started this one:
/// * In the file of `TORCHELASTIC_ERROR_FILE`, in the format of PyTorch's
///   `torch.distributed.elastic`. The message is printed by torchrun.
/// * In Kubernetes' termination log, if it exists: /dev/termination-log, or the file of
///   `TERMINATION_LOG`.
///
/// A file that cannot be written stays unchanged: the message is also on stderr.
void record_failure(const std::string& message);

}  // namespace mezzo::text
