#include <c10/util/Exception.h>

#include "mezzo/text/tune/search.h"

namespace mezzo::text {

SearchResult search(const SearchOptions& /*options*/) {
  TORCH_CHECK(false, "this mezzo was built without SQLite; install libsqlite3-dev and build it again");
}

}  // namespace mezzo::text
