// SPDX-License-Identifier: Apache-2.0
#include "workload/trace.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cerrno>
#include <cstring>
#include <functional>
#include <utility>

#include "base/format.h"
#include "base/nearest.h"
#include "base/units.h"

namespace cistern::workload {
namespace {

namespace json = boost::json;

constexpr std::size_t kReadBytes = 256u << 10;
constexpr std::uint64_t kMaxTimestampMs = 1ull << 53;  // what every JSON writer keeps exact
constexpr std::string_view kForm =
    R"({"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [block, ...]})";

std::string Found(const json::value& value) {
  switch (value.kind()) {
    case json::kind::object: return "an object";
    case json::kind::array: return "an array";
    default: return Shown(json::serialize(value));
  }
}

// A whole number from 0 to `most`; `what` names it for the message.
template <class Name>
Status ReadNumber(const json::value& value, const Name& what, std::uint64_t most, std::uint64_t& number) {
  if (const std::uint64_t* positive = value.if_uint64()) {
    number = *positive;
  } else if (const std::int64_t* small = value.if_int64(); small && *small >= 0) {
    number = static_cast<std::uint64_t>(*small);
  } else {
    return Status(Code::kInvalid,
                  Text(what(), " is ", Found(value), ": expected a whole number from 0 to ", most));
  }
  if (number > most) {
    return Status(Code::kInvalid, Text(what(), " is ", number, ": expected a whole number from 0 to ", most));
  }
  return Status();
}

Status ReadField(const json::object& object, std::string_view field, std::uint64_t most,
                 std::uint64_t& number) {
  const json::value* value = object.if_contains(field);
  if (!value) {
    return Status(Code::kInvalid, Text(field, " is missing: expected an object of the form ", kForm));
  }
  return ReadNumber(*value, [&] { return field; }, most, number);
}

// An id stands for a block after its prefix, so none is its own prefix.
Status CheckNoneTwice(const std::vector<std::uint64_t>& ids) {
  if (std::ranges::is_sorted(ids, std::ranges::less_equal()))
    return Status();  // as most are, and each greater
  std::vector<std::uint64_t> sorted = ids;
  std::ranges::sort(sorted);
  const auto twice = std::ranges::adjacent_find(sorted);
  if (twice == sorted.end()) return Status();
  const auto first = std::ranges::find(ids, *twice);
  const auto second = std::find(first + 1, ids.end(), *twice);
  return Status(Code::kInvalid,
                Text("hash_ids[", second - ids.begin(), "] is ", *twice, ", as hash_ids[",
                     first - ids.begin(), "] is: expected an id of its own for each block of a prompt"));
}

Status ReadHashIds(const json::object& object, Request& request) {
  const json::value* value = object.if_contains("hash_ids");
  if (!value) {
    return Status(Code::kInvalid, Text("hash_ids is missing: expected an object of the form ", kForm));
  }
  const json::array* ids = value->if_array();
  if (!ids) {
    return Status(Code::kInvalid,
                  Text("hash_ids is ", Found(*value), ": expected an array, one whole number a block"));
  }
  const std::size_t most = (std::size_t{request.input_tokens} + kTraceBlockTokens - 1) / kTraceBlockTokens;
  if (ids->size() > most) {
    return Status(Code::kInvalid,
                  Text("hash_ids has ", ids->size(), " blocks: expected at most ", most, " for input_length ",
                       request.input_tokens, " at ", kTraceBlockTokens, " tokens a block"));
  }
  request.hash_ids.resize(ids->size());
  for (std::size_t i = 0; i < ids->size(); ++i) {
    const auto name = [&] { return Text("hash_ids[", i, "]"); };
    Status status = ReadNumber((*ids)[i], name, ~std::uint64_t{0}, request.hash_ids[i]);
    if (!status.ok()) return status;
  }
  return CheckNoneTwice(request.hash_ids);
}

Status ReadRequest(const json::object& object, Request& request) {
  std::uint64_t input = 0;
  std::uint64_t output = 0;
  Status status = ReadField(object, "timestamp", kMaxTimestampMs, request.timestamp_ms);
  if (status.ok()) status = ReadField(object, "input_length", kMaxTraceTokens, input);
  if (status.ok()) status = ReadField(object, "output_length", kMaxTraceTokens, output);
  if (!status.ok()) return status;
  request.input_tokens = static_cast<std::uint32_t>(input);
  request.output_tokens = static_cast<std::uint32_t>(output);
  request.session.reset();
  if (object.contains("session")) {
    std::uint64_t session = 0;
    status = ReadField(object, "session", ~std::uint64_t{0}, session);
    if (!status.ok()) return status;
    request.session = session;
  }
  return ReadHashIds(object, request);
}

}  // namespace

Status ParseTraceLine(std::string_view line, Request& request) {
  // A line is read once and thrown away: its values live in one arena that is dropped whole.
  unsigned char first_buffer[16 << 10];
  json::monotonic_resource memory(first_buffer, sizeof(first_buffer));
  json::stream_parser parser(&memory);
  json::error_code error;
  const std::size_t read = parser.write_some(line, error);
  if (!error && read < line.size()) error = json::error::extra_data;
  if (!error) parser.finish(error);
  if (error) {
    return Status(Code::kInvalid, Text("is not JSON (", error.message(), " at column ", read + 1,
                                       "): expected an object of the form ", kForm));
  }
  const json::value value = parser.release();
  const json::object* object = value.if_object();
  if (!object) {
    return Status(Code::kInvalid, Text("is ", Found(value), ": expected an object of the form ", kForm));
  }
  return ReadRequest(*object, request);
}

Result<TraceReader> TraceReader::Open(std::string path, Ids ids) {
  std::FILE* file = std::fopen(path.c_str(), "rbe");
  if (!file) {
    const int error = errno;
    return Error(Code::kInvalid,
                 Text("trace ", ShownPath(path), ": ", std::strerror(error),
                      ": give a file of JSON lines, or generated:sessions=200 for a made one"));
  }
  return TraceReader(file, std::move(path), ids);
}

TraceReader::TraceReader(std::FILE* file, std::string name, Ids ids)
    : file_(file), name_(std::move(name)), ids_(ids) {}

Result<bool> TraceReader::Next(Request& request) {
  while (true) {
    std::string_view line;
    const Result<bool> more = NextLine(line);
    if (!more || !*more) return more;
    constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
    if (line_ == 1 && line.starts_with(kByteOrderMark)) line.remove_prefix(kByteOrderMark.size());
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    const Status status = ParseTraceLine(line, request);
    if (!status.ok()) return Fail(status.code(), status.message());
    if (request.timestamp_ms < last_ms_) {
      return Fail(Code::kInvalid, Text("timestamp is ", request.timestamp_ms, ", before the ", last_ms_,
                                       " of the request before it: sort the trace by timestamp"));
    }
    last_ms_ = request.timestamp_ms;
    const Status followed = ids_ == Ids::kChains ? Follow(request.hash_ids) : Status();
    if (!followed.ok()) return Fail(followed.code(), followed.message());
    return true;
  }
}

Status TraceReader::Follow(const std::vector<std::uint64_t>& ids) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::uint64_t id = ids[i], before = ids[i == 0 ? 0 : i - 1];
    const auto known = before_.find(id);
    if (known == before_.end()) {
      if (before_.size() < kMostFollowed) before_.emplace(id, before);
      continue;
    }
    if (known->second == before) continue;
    const auto place = [id](std::uint64_t other) {
      return other == id ? std::string("first in its prompt") : Text("after ", other);
    };
    return Status(
        Code::kInvalid,
        Text("hash_ids[", i, "] is ", id, ", ", place(before), ", and in an earlier line ",
             place(known->second),
             ": expected an id to stand for its block and all before it, as KV does; hash each block "
             "together with the id before it"));
  }
  return Status();
}

Result<bool> TraceReader::NextLine(std::string_view& line) {
  std::size_t searched = 0;
  while (true) {
    const std::size_t end = buffer_.find('\n', taken_ + searched);
    searched = buffer_.size() - taken_;
    if (end != buffer_.npos || (read_all_ && searched > 0)) {
      line = std::string_view(buffer_).substr(taken_, end == buffer_.npos ? end : end - taken_);
      taken_ += line.size() + (end != buffer_.npos);
      ++line_;
      return true;
    }
    if (read_all_) return false;
    if (searched > kMaxTraceLineBytes) {
      ++line_;
      return Fail(Code::kInvalid,
                  Text("is longer than ", SizeText(kMaxTraceLineBytes), ": expected one request a line"));
    }
    buffer_.erase(0, std::exchange(taken_, 0));
    buffer_.resize(searched + kReadBytes);
    errno = 0;
    const std::size_t read = std::fread(buffer_.data() + searched, 1, kReadBytes, file_.get());
    const int error = errno;
    buffer_.resize(searched + read);
    if (read == 0 && std::ferror(file_.get())) {
      ++line_;
      return Fail(error == EISDIR ? Code::kInvalid : Code::kIoError, std::strerror(error));
    }
    read_all_ = read == 0;
  }
}

std::unexpected<Status> TraceReader::Fail(Code code, std::string_view why) {
  buffer_.clear();
  taken_ = 0;
  read_all_ = true;
  return Error(code, Text(ShownPath(name_), ":", line_, ": ", why));
}

}  // namespace cistern::workload
