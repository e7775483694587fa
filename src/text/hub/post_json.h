#pragma once

#include <functional>
#include <string>

namespace mezzo::text {

/// Where to post, and as whom.
struct PostTarget {
  std::string url;      ///< https only, as a token goes there
  std::string token;    ///< sent as a bearer token; empty for none
  std::string ca_file;  ///< certificates that vouch for the server; empty for the system's
};

/// Posts JSON, within five seconds. For one thread at a time.
/// @param gives_up  asked about once a second: whether to end the request.
/// @return why it failed, for example "status 403"; empty for an answer with status 2xx.
std::string post_json(const PostTarget& target, const std::string& json, const std::function<bool()>& gives_up);

}  // namespace mezzo::text
