// SPDX-License-Identifier: Apache-2.0
// Server-sent events, as they arrive: in pieces that may end anywhere. Lines end with LF, CR or CRLF;
// comments and fields other than `data` are passed over; several data lines of one event are joined by LF. An
// event that lacks its empty line when the stream ends is none.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace cistern {

class SseParser {
 public:
  static constexpr std::size_t kMaxEventBytes = 16u << 20;

  // Calls `event` with the data of each event that `bytes` completes. False, and from then on always, when an
  // event is larger than kMaxEventBytes or when `event` says so.
  using Event = std::function<bool(std::string_view data)>;
  bool Feed(std::string_view bytes, const Event& event);

 private:
  bool Line(const Event& event);
  bool Dispatch(const Event& event);

  std::string line_;
  std::string data_;
  bool has_data_ = false;
  bool after_cr_ = false;
  bool first_line_ = true;
  bool broken_ = false;
};

}  // namespace cistern
