namespace mezzo::text {}
