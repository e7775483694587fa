#pragma once

#include "mezzo/cpp20.h"

#include <exception>
#include <string>

namespace mezzo::text {

/// An error's message for users. Errors of LibTorch lose the places in its sources; errors of the
/// file system begin with the path.
std::string message_of(const std::exception& error);

/// The same without a full stop at the end, to be continued by the caller.
std::string clause_of(const std::exception& error);

}  // namespace mezzo::text
