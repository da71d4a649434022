CREATE MATERIALIZED VIEW revenue AS
SELECT item, count(*) AS orders, sum(amount) AS amount FROM orders GROUP BY item;
