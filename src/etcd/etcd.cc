// SPDX-License-Identifier: Apache-2.0
#include "etcd/etcd.h"

#include <set>
#include <utility>

#include "base/format.h"
#include "base/nearest.h"

namespace cistern::etcd {
namespace {

constexpr std::string_view kToTheLast("\0", 1);
// What a request has besides keys and values, per condition or operation.
constexpr std::size_t kOperationBytes = 64;

Status Invalid(std::string message) { return Status(Code::kInvalid, std::move(message)); }

Status ValidateRange(const KeyRange& keys) {
  if (keys.key.empty())
    return Invalid("etcd: a key without a byte; no key is empty, and Prefix() names all keys");
  if (!keys.end.empty() && keys.end != kToTheLast && keys.end <= keys.key)
    return Invalid(Text("etcd: the range from ", Shown(keys.key), " ends before it, at ", Shown(keys.end)));
  return Status();
}

Status ValidateOperations(const std::vector<Operation>& operations) {
  std::set<std::string_view> put;
  for (const Operation& operation : operations) {
    if (Status status = ValidateRange(operation.keys); !status.ok()) return status;
    if (operation.kind != Operation::Kind::kPut) continue;
    if (!operation.keys.end.empty())
      return Invalid(Text("etcd: the put of ", Shown(operation.keys.key), " names a range"));
    if (!put.insert(operation.keys.key).second)
      return Invalid(Text("etcd: key ", Shown(operation.keys.key), " is put twice in one transaction"));
  }
  for (const Operation& operation : operations) {
    if (operation.kind != Operation::Kind::kDelete) continue;
    const auto overlap = put.lower_bound(operation.keys.key);
    if (overlap != put.end() && operation.keys.Contains(*overlap))
      return Invalid(Text("etcd: key ", Shown(*overlap), " is put and deleted in one transaction"));
  }
  return Status();
}

}  // namespace

KeyRange KeyRange::Prefix(std::string prefix) {
  std::string end = prefix;
  while (!end.empty() && end.back() == '\xff') end.pop_back();
  if (end.empty()) {
    end = std::string(1, '\0');  // etcd's word for "to the last key"
    if (prefix.empty()) prefix = end;
  } else {
    end.back() = static_cast<char>(static_cast<unsigned char>(end.back()) + 1);
  }
  return {std::move(prefix), std::move(end)};
}

bool KeyRange::Contains(std::string_view other) const {
  if (end.empty()) return other == key;
  return other >= key && (end == kToTheLast || other < end);
}

Status Validate(const RangeRequest& request) {
  if (request.revision < 0 || request.limit < 0)
    return Invalid(Text("etcd: a range of revision ", request.revision, " and limit ", request.limit,
                        ": both are at least 0"));
  return ValidateRange(request.keys);
}

Status Validate(const Transaction& transaction) {
  std::size_t bytes = 0;
  for (const Compare& condition : transaction.conditions) {
    if (condition.key.empty()) return Invalid("etcd: a condition on a key without a byte");
    bytes += condition.key.size() + condition.value.size() + kOperationBytes;
  }
  for (const auto* operations : {&transaction.then, &transaction.otherwise}) {
    if (Status status = ValidateOperations(*operations); !status.ok()) return status;
    for (const Operation& operation : *operations)
      bytes +=
          operation.keys.key.size() + operation.keys.end.size() + operation.value.size() + kOperationBytes;
  }
  for (const std::size_t count :
       {transaction.conditions.size(), transaction.then.size(), transaction.otherwise.size()}) {
    if (count > Limits::kOperations)
      return Invalid(Text("etcd: a transaction with ", count, " conditions or operations; the limit is ",
                          Limits::kOperations));
  }
  if (bytes > Limits::kRequestBytes)
    return Invalid(Text("etcd: a transaction of ", bytes, " bytes; the limit is ", Limits::kRequestBytes));
  return Status();
}

Status ValidateLeaseTtl(std::int64_t ttl_s) {
  if (ttl_s >= 1 && ttl_s <= Limits::kLeaseTtlS) return Status();
  return Invalid(Text("etcd: a lease of ", ttl_s, " s; it is from 1 to ", Limits::kLeaseTtlS));
}

}  // namespace cistern::etcd
