#include "mezzo/text/models/bert_config.h"

#include <c10/util/Exception.h>

#include "text/models/bert_line.h"

namespace mezzo::text {

std::string BertConfig::json() const { return bert_fields(*this, "Bert").dump(2); }

void BertConfig::set_dropout(double p) {
  TORCH_CHECK_VALUE(p >= 0 && p < 1, "dropout must be in [0, 1), got ", p);
  hidden_dropout_prob = attention_probs_dropout_prob = classifier_dropout = p;
}

}  // namespace mezzo::text
