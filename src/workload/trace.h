// SPDX-License-Identifier: Apache-2.0
// Traces as JSON lines: {"timestamp": ms, "input_length": tokens, "output_length": tokens,
// "hash_ids": [block, ...], "session": number}. session may be missing, unknown fields and empty lines are
// passed over, and a request may name fewer blocks than its input has (published traces leave a partial last
// block out), never more, and none twice. Of chains, no id comes after two others in two lines, as far as the
// first kMostFollowed ids tell. Timestamps never go back.
#pragma once

#include <boost/unordered/unordered_flat_map.hpp>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

#include "cistern/status.h"
#include "workload/request.h"

namespace cistern::workload {

inline constexpr std::size_t kMaxTraceLineBytes = 4u << 20;
inline constexpr std::uint64_t kMaxTraceTokens = 1u << 30;  // of an input or an output
inline constexpr std::size_t kMostFollowed = 1u << 20;      // some 40 MiB

// One line of a trace. kInvalid says which field, what it is and what was expected; `request` is then in
// an unspecified state.
Status ParseTraceLine(std::string_view line, Request& request);

// Reads a trace as a stream, one line in memory at a time. Errors begin with "FILE:LINE: ".
class TraceReader final : public RequestSource {
 public:
  // kInvalid when the file cannot be opened: another was meant.
  static Result<TraceReader> Open(std::string path, Ids ids = Ids::kChains);
  // Takes over `file`, which is called `name` in errors.
  TraceReader(std::FILE* file, std::string name, Ids ids = Ids::kChains);

  Result<bool> Next(Request& request) override;

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  // The next line without its end, valid until the next call; false at the end.
  Result<bool> NextLine(std::string_view& line);
  // That each id has the one before it that it always had.
  Status Follow(const std::vector<std::uint64_t>& ids);
  std::unexpected<Status> Fail(Code code, std::string_view why);

  std::unique_ptr<std::FILE, Close> file_;
  std::string name_;
  std::string buffer_;
  std::size_t taken_ = 0;  // bytes of buffer_ that are behind us
  std::uint64_t line_ = 0;
  std::uint64_t last_ms_ = 0;  // of the request before
  bool read_all_ = false;
  Ids ids_;
  boost::unordered_flat_map<std::uint64_t, std::uint64_t> before_;  // of each id; of a prompt's first itself
};

}  // namespace cistern::workload
