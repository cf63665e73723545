-- What a call does to a counter. The twin of charge.rs.

-- What is spent after it, however much that is. Below nothing, a cost is given back, and nothing is a look.
local function charged(spent, cost, deepest)
  return math.max(math.min(spent + cost, deepest), 0)
end
