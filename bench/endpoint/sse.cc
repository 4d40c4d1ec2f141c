// SPDX-License-Identifier: Apache-2.0
#include "endpoint/sse.h"

#include <algorithm>
#include <utility>

namespace cistern {

bool SseParser::Feed(std::string_view bytes, const Event& event) {
  while (!bytes.empty() && !broken_) {
    if (std::exchange(after_cr_, false) && bytes.front() == '\n') {
      bytes.remove_prefix(1);
      continue;
    }
    const std::size_t end = bytes.find_first_of("\r\n");
    const std::string_view part = bytes.substr(0, end);
    if (line_.size() + data_.size() + part.size() > kMaxEventBytes) {
      broken_ = true;
      break;
    }
    line_.append(part);
    if (end == bytes.npos) break;
    after_cr_ = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    broken_ = !Line(event);
  }
  return !broken_;
}

bool SseParser::Line(const Event& event) {
  std::string line = std::exchange(line_, {});
  std::string_view rest = line;
  if (std::exchange(first_line_, false) && rest.starts_with("\xef\xbb\xbf")) rest.remove_prefix(3);
  if (rest.empty()) return Dispatch(event);
  const std::string_view field = rest.substr(0, rest.find(':'));
  if (field != "data") return true;
  rest.remove_prefix(std::min(rest.size(), field.size() + 1));
  if (rest.starts_with(' ')) rest.remove_prefix(1);
  if (std::exchange(has_data_, true)) data_.push_back('\n');
  data_.append(rest);
  return true;
}

bool SseParser::Dispatch(const Event& event) {
  if (!std::exchange(has_data_, false)) return true;
  const std::string data = std::exchange(data_, {});
  return event(data);
}

}  // namespace cistern
