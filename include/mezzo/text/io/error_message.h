#pragma once

#include "mezzo/cpp20.h"

#include <exception>
#include <string>

namespace mezzo::text {

/// What an error says to a user: of LibTorch's, without the places in its sources; of the file system's, the path
/// first.
std::string message_of(const std::exception& error);

/// Likewise, without a full stop at the end, for a sentence that goes on.
std::string clause_of(const std::exception& error);

}  // namespace mezzo::text
