// SPDX-License-Identifier: Apache-2.0
#include "etcd/etcd.h"

#include <utility>

namespace cistern::etcd {

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

}  // namespace cistern::etcd
