-- What a call does to a counter. The twin of charge.rs.
local COUNT, DROP, LOOK, GIVE_BACK = 1, 2, 3, 4

local function charge(spent, kind, cost, full, deepest)
  if kind == LOOK then
    return spent, spent > full
  end
  if kind == GIVE_BACK then
    local left = math.max(spent - cost, 0)
    return left, left > full
  end
  local charged = spent + cost
  if charged <= full then
    return charged, false
  end
  if kind == DROP then
    return spent, true
  end
  return math.min(charged, deepest), true
end
