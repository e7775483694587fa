#pragma once

#include <string>

namespace mezzo::text {

/// A page on which people try texts; it loads kTryScript as /page.js, and asks the server whatever else it shows.
/// @param asks_token  whether requests must bear a token, which the page has a field for then.
std::string try_page(bool asks_token);

extern const char* const kTryScript;

}  // namespace mezzo::text
